"""What ``Memory.recall`` hands out and ``Memory.explain`` tells about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inferscale_memory.facts import Fact, ItemError
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import Scope


class Handle(str):
    """A KV handle: the text token to put into a system message, and what was recalled (best first), for your eyes.

    Only the text travels; ``facts`` is there as long as this very object is.
    """

    __slots__ = ("facts",)

    facts: tuple[ScoredFact, ...]

    def __new__(cls, token: str, facts: Sequence[ScoredFact] = ()) -> Handle:
        """Wrap a token."""
        handle = super().__new__(cls, token)
        handle.facts = tuple(facts)
        return handle

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (str(self),))


class Handles(list[Handle]):
    """What ``Memory.recall_many`` hands out: one handle per question, in their order.

    ``errors`` names the questions that could not be embedded; their handles stand for no facts.
    """

    def __init__(self, handles: Iterable[Handle], errors: Sequence[ItemError] = ()) -> None:
        """Collect handles."""
        super().__init__(handles)
        self.errors = tuple(errors)


@dataclass(frozen=True)
class ExplainedFact:
    """One fact behind a handle.

    ``score`` is the cosine it was recalled with, ``None`` where this process did not recall it. ``encoded`` says
    whether its chunk is ready, ``resident`` whether the chunk's files are there; ``refreshed`` facts are prefilled as
    text in any case.
    """

    fact: Fact
    score: float | None
    encoded: bool
    resident: bool
    refreshed: bool


@dataclass(frozen=True)
class Explanation:
    """What a handle stands for now: facts in prompt order, and how many were deleted since."""

    scope: Scope
    expires_at: datetime
    refresh: int
    facts: tuple[ExplainedFact, ...]
    deleted: int
