"""A policy that keeps several chunks of a fact and injects the one whose context is like its place in the prompt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from inferscale_memory.encoding.policies.base import ContextPolicy, check_window
from inferscale_memory.encoding.policies.similar import Nearest
from inferscale_memory.encoding.policies.windows import PREAMBLE, Preceding
from inferscale_memory.errors import InvalidInputError

MAX_RUNGS = 8
"""Most chunks of one fact."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ladder:
    """A chunk behind the neutral preamble, one behind preceding facts, and others behind ever more of the nearest ones.

    In a prompt, the first fact stands behind the preamble alone and the fiftieth behind 49 others: a chunk encoded
    behind much more, or much less, than stands before it is the farther off. So each place takes the chunk of the
    lowest rung whose context has at least as many facts as stand before it, or of the last rung. The first place is
    exact. A fact costs one encoding and one chunk per rung; a prompt costs what it costs with one chunk per fact.

    The first step counts preceding facts, the others nearest ones. Near the beginning of a prompt little stands before
    a fact to outweigh what it was encoded behind: there a near fact that is absent shows through, and would mislead
    more than one that is merely older. Farther down, near facts are what probably stands there.

    It is no ``ContextPolicy`` itself but a choice among several, its ``rungs``: their chunks are those of the plain
    policies, and are shared with memories that use these.
    """

    steps: tuple[int, ...] = (5, 8, 20)
    positional: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the steps.

        Raises:
            InvalidInputError: there are none, too many, they do not rise, or one is out of range.
        """
        if not 1 <= len(self.steps) < MAX_RUNGS:
            raise InvalidInputError(
                f"a ladder has 1 to {MAX_RUNGS - 1} steps, such as 'ladder:5:8:20'; {len(self.steps)} were given."
            )
        for step in self.steps:
            check_window("ladder", step)
        if list(self.steps) != sorted(set(self.steps)):
            raise InvalidInputError(f"the steps of a ladder rise, as in 'ladder:5:8:20'; got {self.steps}.")

    @property
    def name(self) -> str:
        """``"ladder:{n}:{n}..."``."""
        return ":".join(["ladder", *map(str, self.steps)])

    @cached_property
    def rungs(self) -> tuple[ContextPolicy, ...]:
        """The policies of the chunks, the smallest context first."""
        first, *others = self.steps
        return (PREAMBLE, Preceding(first), *map(Nearest, others))

    def rung_at(self, place: int) -> int:
        """Which of ``rungs`` suits a fact that ``place`` others stand before."""
        return min(bisect_left((0, *self.steps), place), len(self.steps))


Policy = ContextPolicy | Ladder
"""What a memory encodes by."""


def rungs_of(policy: Policy) -> tuple[ContextPolicy, ...]:
    """The policies of a fact's chunks: one, or those of a ladder."""
    return policy.rungs if isinstance(policy, Ladder) else (policy,)


def chunk_policies(policy: Policy) -> list[str]:
    """Names of the policies of a fact's chunks."""
    return [rung.name for rung in rungs_of(policy)]


def wanted_at(policy: Policy, place: int) -> str:
    """Name of the policy whose chunk is injected for a fact that ``place`` injected ones stand before."""
    return policy.rungs[policy.rung_at(place)].name if isinstance(policy, Ladder) else policy.name


def chosen_at(policy: Policy, place: int, there: Mapping[str, _T]) -> _T:
    """The chunk for a place, of those that are there by the names of their policies; at least one of them is.

    Where the one that suits the place is still to be encoded, it is the next larger context, else the next smaller.
    """
    if not isinstance(policy, Ladder):
        return there[policy.name]
    suits = policy.rung_at(place)
    names = chunk_policies(policy)
    best_first = [*names[suits:], *reversed(names[:suits])]
    return there[next(name for name in best_first if name in there)]
