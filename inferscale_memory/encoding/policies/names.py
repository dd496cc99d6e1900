"""From a setting to a policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from inferscale_memory.encoding.policies.ladder import MAX_RUNGS, Ladder, Policy
from inferscale_memory.encoding.policies.similar import Mixed, Nearest
from inferscale_memory.encoding.policies.windows import NONE, PREAMBLE, PREFIX, Preceding, Session
from inferscale_memory.errors import InvalidInputError

DEFAULT_POLICY = Ladder()
"""Chunks behind the preamble alone, five preceding facts, and the eight and twenty nearest ones."""

_WRITTEN = re.compile(
    r"(?P<kind>[a-z]+)(?::(?P<colons>[^()\s]+)|\((?P<call>[^():]+)\))?",
    re.ASCII,
)
_NUMBER, _BUDGET, _WORD = (re.compile(kind, re.ASCII) for kind in (r"[0-9]{1,6}", r"([0-9]{1,7})t", r"[A-Za-z_]\w*"))


class _Kind(NamedTuple):
    """How a policy is written: at most so many numbers, and whether a word may follow them."""

    make: Callable[..., Policy]
    numbers: int
    word: bool = False


_KINDS = {
    "preceding": _Kind(Preceding, 1, word=True),
    "nearest": _Kind(Nearest, 1),
    "mixed": _Kind(Mixed, 2),
    "session": _Kind(Session, 1),
    "ladder": _Kind(lambda *steps, budget=None: _ladder(steps, budget), MAX_RUNGS),
}


def parse_policy(text: str | Policy | None) -> Policy:
    """Turn a setting into a policy.

    Args:
        text: ``"none"``, ``"preamble"``, ``"prefix"``, ``"preceding"``, ``"preceding:5"``, ``"preceding:20:turn"``,
            ``"nearest:5"``, ``"mixed:5:3"`` (five nearest, three preceding), ``"session:5"``, or ``"ladder:5:8:20"``
            (a chunk behind the preamble, one behind 5 preceding, and one behind 8 and 20 nearest each); all but the
            first three and the last also with a budget of tokens at the end, ``"nearest:10:400t"``; or written as a
            call, ``"nearest(10, 400t)"``. None is the default, ``ladder:5:8:20``; a policy comes back as it is.

    Raises:
        InvalidInputError: the text is none of these, or a number is out of range.
    """
    if text is None:
        return DEFAULT_POLICY
    if not isinstance(text, str):
        return text
    wanted = text.strip()
    for fixed in (NONE, PREAMBLE, PREFIX):
        if wanted == fixed.name:
            return fixed
    policy = _made(wanted)
    if policy is None:
        raise InvalidInputError(
            f"unknown encoding context {text!r}; give 'none', 'preamble', 'prefix', 'preceding:N' or "
            "'preceding:N:UNIT' with UNIT 'fact' or 'turn', 'nearest:N', 'mixed:N:M', 'session:N' or "
            "'ladder:N:M', such as 'preceding:5:fact'; a budget of tokens may follow, as in 'nearest:10:400t'."
        )
    return policy


def _ladder(steps: tuple[int, ...], budget: int | None) -> Ladder:
    if budget is not None:
        raise InvalidInputError(f"a ladder has no budget of tokens, and {budget}t was given; its steps bound it.")
    return Ladder(steps) if steps else Ladder()


def _made(written: str) -> Policy | None:
    """The policy; None where it is not written as one."""
    match = _WRITTEN.fullmatch(written)
    kind = _KINDS.get(match["kind"]) if match else None
    if match is None or kind is None:
        return None
    given = match["colons"] or match["call"]
    left = [] if given is None else [part.strip() for part in given.split(":" if match["colons"] else ",")]
    budget: int | None = None
    if left and (limit := _BUDGET.fullmatch(left[-1])):
        budget = int(limit[1])
        left.pop()
    args: list[int | str] = []
    while left and len(args) < kind.numbers and _NUMBER.fullmatch(left[0]):
        args.append(int(left.pop(0)))
    if kind.word and args and left and _WORD.fullmatch(left[0]):
        args.append(left.pop(0))
    return None if left else kind.make(*args, budget=budget)
