"""Budgets of memory as people write them: ``1GiB``, ``800MB``, ``15%``, or a number of bytes."""

from __future__ import annotations

import re
from typing import NamedTuple

from inferscale_memory.errors import InvalidInputError

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("", 1024))
}
_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|[a-z]*)")


class MemoryBudget(NamedTuple):
    """So many bytes, or a share of what there is."""

    bytes: int = 0
    share: float = 0.0

    @classmethod
    def parse(cls, given: str | int) -> MemoryBudget:
        """Read a budget.

        Raises:
            InvalidInputError: it is none.
        """
        match = _FORM.fullmatch(str(given).strip().lower())
        unit = match["unit"] if match else "?"
        if match is not None and unit == "%" and float(match["number"]) <= 100:
            return cls(share=float(match["number"]) / 100)
        if match is not None and unit in _UNITS:
            return cls(bytes=int(float(match["number"]) * _UNITS[unit]))
        raise InvalidInputError(f"{given!r} is no budget of memory; wanted '2GiB', '15%' or a number of bytes, say.")

    def resolve(self, total: int) -> int:
        """The budget in bytes, where ``total`` bytes are there in all."""
        return self.bytes or int(self.share * total)

    def __bool__(self) -> bool:
        return bool(self.bytes or self.share)


def utilization_beside(share: float, arena_bytes: int, total_bytes: int) -> float:
    """VLLM's ``gpu_memory_utilization`` where an arena takes its part of the same share of the device.

    Args:
        share: of the device's memory that vLLM and the arena may use together.
        arena_bytes: the arena's part.
        total_bytes: of the device.

    Raises:
        InvalidInputError: the arena leaves vLLM nothing.
    """
    left = share - arena_bytes / total_bytes
    if left <= 0:
        raise InvalidInputError(
            f"the arena's {arena_bytes:,} bytes are more than {share:.0%} of the device's {total_bytes:,}: nothing is "
            "left for the model. Lower INFERSCALE_ARENA, or raise gpu_memory_utilization."
        )
    return left
