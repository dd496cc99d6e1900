"""Policies without a context of their own, and those that take what was saved before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from inferscale_memory.encoding.policies.base import ContextItem, ContextSource, Lines, check_window, fact_item
from inferscale_memory.errors import InvalidInputError

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact, Turn

Unit = Literal["fact", "turn"]


@dataclass(frozen=True)
class _Fixed:
    """A policy without a context of its own; instances are ``NONE``, ``PREAMBLE`` and ``PREFIX``."""

    name: str
    positional: bool
    neutral: bool
    similar: ClassVar[bool] = False
    budget: ClassVar[int | None] = None

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        return ()

    def arrange(self, items: Sequence[ContextItem]) -> tuple[ContextItem, ...]:
        return tuple(items)

    def reach(self, items: Sequence[ContextItem]) -> float | None:
        return None


NONE = _Fixed("none", positional=False, neutral=False)
"""A fact is encoded alone, at position 0: the control that shows what a context is worth."""
PREAMBLE = _Fixed("preamble", positional=False, neutral=True)
"""A fact is encoded behind the neutral preamble only."""
PREFIX = _Fixed("prefix", positional=True, neutral=False)
"""Chunks are made at question time behind the actual preamble and every fact placed before: injection is exact."""


@dataclass(frozen=True)
class Preceding(Lines):
    """The neutral preamble and the ``window`` facts or turns that came before, oldest first.

    ``unit="turn"`` falls back to facts for a fact that was saved without turns.
    """

    window: int = 5
    unit: Unit = "fact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("fact", "turn"):
            raise InvalidInputError(f"unit is {self.unit!r}; it must be 'fact' or 'turn'.")
        check_window("preceding", self.window)

    @property
    def name(self) -> str:
        """``"preceding:{window}:{unit}"``, and ``":{budget}t"``."""
        return self._named("preceding", self.window, self.unit)

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """At most ``window`` lines."""
        if self.unit == "turn" and fact.turn_ids:
            return tuple(_turn_item(turn) for turn in source.preceding_turns(fact, self.window))
        return tuple(map(fact_item, source.preceding_facts(fact, self.window)))


@dataclass(frozen=True)
class Session(Lines):
    """The neutral preamble and the ``window`` newest facts of the same session that came before, oldest first.

    A fact without a session (neither in its scope nor as ``"session"`` in its metadata) is encoded behind preceding
    facts.
    """

    window: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("session", self.window)

    @property
    def name(self) -> str:
        """``"session:{window}"``, and ``":{budget}t"``."""
        return self._named("session", self.window)

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """At most ``window`` lines."""
        said = source.session_facts(fact, self.window)
        if said is None:
            said = source.preceding_facts(fact, self.window)
        return tuple(map(fact_item, said))


def _turn_item(turn: Turn) -> ContextItem:
    return ContextItem(f"{turn.speaker or turn.role.capitalize()}: {turn.text}", turn_id=turn.id)
