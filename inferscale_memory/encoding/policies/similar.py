"""Policies that encode a fact behind the facts it will probably be retrieved with: those most like it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferscale_memory.encoding.policies.base import (
    ANYTHING,
    ContextItem,
    ContextSource,
    Lines,
    check_window,
    fact_item,
)

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact


@dataclass(frozen=True)
class Nearest(Lines):
    """The neutral preamble and the ``n`` most similar facts, saved before or after, the most similar last.

    A fact that has no vector, because the embedder failed on it, is encoded behind preceding facts until it has one.
    """

    n: int = 5
    similar: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("nearest", self.n)

    @property
    def name(self) -> str:
        """``"nearest:{n}"``, and ``":{budget}t"``."""
        return self._named("nearest", self.n)

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """At most ``n`` lines, the most similar last."""
        chosen = _most_similar(fact, source, self.n)
        return tuple(map(fact_item, source.preceding_facts(fact, self.n))) if chosen is None else chosen

    def reach(self, items: Sequence[ContextItem]) -> float | None:
        """The least similarity among them, once there are ``n``."""
        return _reach(items, self.n)


@dataclass(frozen=True)
class Mixed(Lines):
    """The neutral preamble, the ``preceding`` facts saved right before, and the ``n`` most similar of the others.

    Preceding facts come first, oldest first; then the similar ones, the most similar last.
    """

    n: int = 5
    preceding: int = 3
    similar: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("mixed", self.n)
        check_window("mixed", self.preceding)

    @property
    def name(self) -> str:
        """``"mixed:{n}:{preceding}"``, and ``":{budget}t"``."""
        return self._named("mixed", self.n, self.preceding)

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """At most ``preceding + n`` lines."""
        before = source.preceding_facts(fact, self.preceding)
        near = _most_similar(fact, source, self.n, besides={other.id for other in before})
        if near is None:
            return tuple(map(fact_item, source.preceding_facts(fact, self.preceding + self.n)))
        return (*map(fact_item, before), *near)

    def reach(self, items: Sequence[ContextItem]) -> float | None:
        """The least similarity among the similar ones, once there are ``n``."""
        return _reach(items, self.n)


def _most_similar(
    fact: Fact, source: ContextSource, n: int, besides: Collection[str] = ()
) -> tuple[ContextItem, ...] | None:
    """The ``n`` most similar facts but those of ``besides``, the most similar last; None without a vector."""
    found = source.nearest_facts(fact, n + len(besides))
    if found is None:
        return None
    chosen = [near for near in found if near.fact.id not in besides][:n]
    return tuple(fact_item(near.fact, near.similarity) for near in reversed(chosen))


def _reach(items: Sequence[ContextItem], n: int) -> float:
    similarities = [item.similarity for item in items if item.similarity is not None]
    return min(similarities) if len(similarities) == n else ANYTHING
