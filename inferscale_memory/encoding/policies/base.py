"""The contract of a context policy, and what it asks of the memory and of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from inferscale_memory.errors import InvalidInputError

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact, Turn

MAX_WINDOW = 1000
"""Largest window a policy takes; the model's length cuts it further."""
MAX_BUDGET = 1_000_000
"""Largest budget in tokens."""
ANYTHING = -2.0
"""The ``reach`` of a choice that any further fact would change: no cosine is below it."""


class ContextItem(NamedTuple):
    """One line of encoding context, and which fact or turn it comes from (exactly one of the two is set)."""

    text: str
    fact_id: str | None = None
    turn_id: str | None = None
    revision: int | None = None
    """Revision of ``fact_id`` that the text is of; None for a turn, which never changes."""
    similarity: float | None = None
    """Cosine with the fact, where the item was taken for it."""


class Near(NamedTuple):
    """A fact and how similar it is to another: the cosine of their vectors, in [-1, 1]."""

    fact: Fact
    similarity: float


class ContextSource(Protocol):
    """Where a policy finds what could stand before a fact.

    Whatever it gives is seen wherever ``fact`` is seen: of the same principal, of the same session (or of none, if it
    has none), of its agent or of none.
    """

    def preceding_facts(self, fact: Fact, n: int) -> list[Fact]:
        """At most ``n`` facts saved before ``fact``, oldest first."""
        ...

    def preceding_turns(self, fact: Fact, n: int) -> list[Turn]:
        """At most ``n`` turns before the first source turn of ``fact``, oldest first; empty where it has none."""
        ...

    def session_facts(self, fact: Fact, n: int) -> list[Fact] | None:
        """At most ``n`` facts of the same session saved before ``fact``, oldest first; None where it has no session."""
        ...

    def nearest_facts(self, fact: Fact, n: int) -> list[Near] | None:
        """At most ``n`` other facts, most similar first, of equally similar ones that saved first; ``n`` if they exist.

        Facts saved later count like those saved before. None where ``fact`` has no vector (yet).
        """
        ...


class PromptPieces(Protocol):
    """The two parts of a prompt that encoding needs. ``prompt.PromptBuilder`` is one."""

    def neutral_preamble(self) -> tuple[int, ...]:
        """Token ids of the template's opening and the header, whatever the application's system prompt is."""
        ...

    def fact_tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of one fact's line as it stands in a prompt."""
        ...


class ContextPolicy(Protocol):
    """Chooses the encoding context of a fact.

    ``name`` is canonical: two policies that choose the same context have the same name, and
    ``parse_policy(policy.name) == policy``. It is part of salts and of chunk keys.
    """

    @property
    def name(self) -> str:
        """Canonical form, such as ``"preceding:5:fact"``."""
        ...

    @property
    def positional(self) -> bool:
        """True when chunks depend on the place in the prompt, so that nothing can be encoded beforehand."""
        ...

    @property
    def neutral(self) -> bool:
        """True when facts are encoded behind the neutral preamble."""
        ...

    @property
    def similar(self) -> bool:
        """True when the choice depends on vectors, and so on facts saved later (see ``reach``)."""
        ...

    @property
    def budget(self) -> int | None:
        """Most tokens that the lines of the context may have together; None for no bound but the model's length."""
        ...

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """Which lines stand between preamble and fact: those first that are dropped first where they do not all fit.

        Never the fact itself.
        """
        ...

    def arrange(self, items: Sequence[ContextItem]) -> tuple[ContextItem, ...]:
        """Where they stand: the items of ``context`` that fit, in the order of the prompt."""
        ...

    def reach(self, items: Sequence[ContextItem]) -> float | None:
        """How similar to the fact a further fact must be to change this choice: a cosine, or ``ANYTHING``.

        None where no fact saved later does.
        """
        ...


@dataclass(frozen=True)
class Lines:
    """What policies have in common whose context is lines behind the neutral preamble.

    They stand in the order of ``context``: the closer to the fact, the later a line is dropped.
    """

    budget: int | None = field(default=None, kw_only=True)
    positional: bool = field(default=False, init=False, repr=False)
    neutral: bool = field(default=True, init=False, repr=False)
    similar: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the budget.

        Raises:
            InvalidInputError: it is out of range.
        """
        if self.budget is not None and not 1 <= self.budget <= MAX_BUDGET:
            raise InvalidInputError(
                f"the budget is {self.budget} tokens; it must be 1 to {MAX_BUDGET}. "
                "For no context use the policy 'preamble'."
            )

    def arrange(self, items: Sequence[ContextItem]) -> tuple[ContextItem, ...]:
        """As they were chosen."""
        return tuple(items)

    def reach(self, items: Sequence[ContextItem]) -> float | None:
        """None: what is saved later does not matter."""
        return None

    def _named(self, *parts: object) -> str:
        return ":".join(map(str, [*parts, *([] if self.budget is None else [f"{self.budget}t"])]))


def check_window(kind: str, window: int) -> None:
    """Refuse a number of lines that is out of range.

    Raises:
        InvalidInputError: it is.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise InvalidInputError(
            f"the window of {kind!r} is {window}; it must be 1 to {MAX_WINDOW}. "
            "For no window use the policy 'preamble'."
        )


def fact_item(fact: Fact, similarity: float | None = None) -> ContextItem:
    """The line of a fact."""
    return ContextItem(fact.text, fact_id=fact.id, revision=fact.revision, similarity=similarity)
