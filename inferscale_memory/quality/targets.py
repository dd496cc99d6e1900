"""What ``refresh="auto"`` aims at: budgets of time to the first token as people write them."""

from __future__ import annotations

import re
from typing import NamedTuple

from inferscale_memory.errors import InvalidInputError

_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|x)")
_MILLISECONDS = {"ms": 1.0, "s": 1e3}


class TtftBudget(NamedTuple):
    """So many milliseconds, or so many times what the same prompt takes with ``refresh=0``; one of the two is set."""

    ms: float | None = None
    ratio: float | None = None

    @classmethod
    def parse(cls, given: str) -> TtftBudget:
        """Read ``"150ms"``, ``"0.2s"`` or ``"1.25x"``.

        Raises:
            InvalidInputError: it is none of these, a time of 0, or a ratio below 1.
        """
        match = _FORM.fullmatch(str(given).strip().lower())
        if match is not None:
            number, unit = float(match["number"]), match["unit"]
            if unit == "x" and number >= 1:
                return cls(ratio=number)
            if unit != "x" and number > 0:
                return cls(ms=number * _MILLISECONDS[unit])
        raise InvalidInputError(
            f"{given!r} is no budget of time; wanted '150ms', '0.2s', or a multiple of refresh 0, '1.25x' (1 or more)."
        )

    def limit(self, base_ms: float) -> float:
        """The budget in milliseconds, where ``refresh=0`` takes ``base_ms``."""
        if self.ms is not None:
            return self.ms
        assert self.ratio is not None
        return self.ratio * base_ms
