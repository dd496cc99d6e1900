"""Context policies: what a fact is prefilled behind when its attention state is captured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from inferscale_memory.errors import EncodingError, InvalidInputError

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact, Turn

Unit = Literal["fact", "turn"]

MAX_WINDOW = 1000
"""Largest window a policy takes; the model's length cuts it further."""


class ContextItem(NamedTuple):
    """One line of encoding context, and which fact or turn it comes from (exactly one of the two is set)."""

    text: str
    fact_id: str | None = None
    turn_id: str | None = None
    revision: int | None = None
    """Revision of ``fact_id`` that the text is of; None for a turn, which never changes."""


class ContextSource(Protocol):
    """Where a policy finds what came before a fact. ``facts.store.FactStore`` is one."""

    def preceding_facts(self, fact: Fact, n: int) -> list[Fact]:
        """At most ``n`` facts saved before ``fact`` in its scope, oldest first."""
        ...

    def preceding_turns(self, fact: Fact, n: int) -> list[Turn]:
        """At most ``n`` turns before the first source turn of ``fact``, oldest first; empty where it has none."""
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

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """Lines that stand between preamble and fact, oldest first; never the fact itself."""
        ...


@dataclass(frozen=True)
class _Fixed:
    """A policy without a context of its own; instances are ``NONE``, ``PREAMBLE`` and ``PREFIX``."""

    name: str
    positional: bool
    neutral: bool

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        return ()


NONE = _Fixed("none", positional=False, neutral=False)
"""A fact is encoded alone, at position 0: the control that shows what a context is worth."""
PREAMBLE = _Fixed("preamble", positional=False, neutral=True)
"""A fact is encoded behind the neutral preamble only."""
PREFIX = _Fixed("prefix", positional=True, neutral=False)
"""Chunks are made at question time behind the actual preamble and every fact placed before: injection is exact."""


@dataclass(frozen=True)
class Preceding:
    """The neutral preamble and the ``window`` facts or turns that came before.

    ``unit="turn"`` falls back to facts for a fact that was saved without turns.
    """

    window: int = 5
    unit: Unit = "fact"
    positional: bool = field(default=False, init=False)
    neutral: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.unit not in ("fact", "turn"):
            raise InvalidInputError(f"unit is {self.unit!r}; it must be 'fact' or 'turn'.")
        if not 1 <= self.window <= MAX_WINDOW:
            raise InvalidInputError(
                f"the window of 'preceding' is {self.window}; it must be 1 to {MAX_WINDOW}. "
                "For no window use the policy 'preamble'."
            )

    @property
    def name(self) -> str:
        """``"preceding:{window}:{unit}"``."""
        return f"preceding:{self.window}:{self.unit}"

    def context(self, fact: Fact, source: ContextSource) -> tuple[ContextItem, ...]:
        """At most ``window`` lines, oldest first."""
        if self.unit == "turn" and fact.turn_ids:
            return tuple(_turn_item(turn) for turn in source.preceding_turns(fact, self.window))
        before = source.preceding_facts(fact, self.window)
        return tuple(ContextItem(f.text, fact_id=f.id, revision=f.revision) for f in before)


def _turn_item(turn: Turn) -> ContextItem:
    return ContextItem(f"{turn.speaker or turn.role.capitalize()}: {turn.text}", turn_id=turn.id)


DEFAULT_POLICY = Preceding()
"""Five preceding facts."""

_PRECEDING = re.compile(
    r"preceding(?:(?::(?P<window>[0-9]{1,6})(?::(?P<unit>\w+))?)"
    r"|(?:\(\s*(?P<window2>[0-9]{1,6})\s*(?:,\s*(?P<unit2>\w+)\s*)?\)))?",
    re.ASCII,
)


def parse_policy(text: str | ContextPolicy | None) -> ContextPolicy:
    """Turn a setting into a policy.

    Args:
        text: ``"none"``, ``"preamble"``, ``"prefix"``, ``"preceding"``, ``"preceding:5"``, ``"preceding:20:turn"``, or
            written as a call, ``"preceding(20, turn)"``. None is the default, ``preceding:5:fact``; a policy comes
            back as it is.

    Raises:
        InvalidInputError: the text is none of these.
    """
    if text is None:
        return DEFAULT_POLICY
    if not isinstance(text, str):
        return text
    wanted = text.strip()
    for fixed in (NONE, PREAMBLE, PREFIX):
        if wanted == fixed.name:
            return fixed
    match = _PRECEDING.fullmatch(wanted)
    if match is None:
        raise InvalidInputError(
            f"unknown encoding context {text!r}; give 'none', 'preamble', 'prefix', "
            "'preceding:N' or 'preceding:N:UNIT' with UNIT 'fact' or 'turn', such as 'preceding:5:fact'."
        )
    window = match["window"] or match["window2"]
    unit = match["unit"] or match["unit2"] or DEFAULT_POLICY.unit
    return Preceding(int(window) if window else DEFAULT_POLICY.window, unit)  # type: ignore[arg-type]  # checked there


@dataclass(frozen=True)
class EncodeRequest:
    """One prompt to run through the model, and the span of it to keep.

    Attributes:
        token_ids: the whole prompt.
        start: first token of the fact; everything before it is context.
        end: one past the fact's last token, the prompt's length.
        kept: the context items that stand in the prompt, oldest first.
    """

    token_ids: tuple[int, ...]
    start: int
    end: int
    kept: tuple[ContextItem, ...]

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Token ids before the fact."""
        return self.token_ids[: self.start]

    @property
    def fact_ids(self) -> tuple[int, ...]:
        """Token ids of the fact's line."""
        return self.token_ids[self.start : self.end]


def build_request(
    prompt: PromptPieces, policy: ContextPolicy, fact: Fact, items: Sequence[ContextItem], max_model_len: int
) -> EncodeRequest:
    """Lay out preamble, context and fact.

    Whole context items are cut from the left (the oldest first) until the prompt and the one token the engine must
    generate fit ``max_model_len``.

    Raises:
        EncodingError: the fact does not fit even without context.
    """
    preamble = tuple(prompt.neutral_preamble()) if policy.neutral else ()
    line = tuple(prompt.fact_tokens(fact.text))
    room = max_model_len - 1 - len(preamble) - len(line)
    if not line or room < 0:
        raise EncodingError(
            f"fact {fact.id} is {len(line)} tokens; behind a preamble of {len(preamble)} at most "
            f"{max(0, max_model_len - 1 - len(preamble))} fit the model's length of {max_model_len}. "
            "It is kept as text only; split it into shorter facts, or start the engine with a larger max_model_len."
        )
    kept: list[tuple[ContextItem, tuple[int, ...]]] = []
    for item in reversed(items):
        ids = tuple(prompt.fact_tokens(item.text))
        if len(ids) > room:
            break
        room -= len(ids)
        kept.append((item, ids))
    kept.reverse()
    context = [*preamble, *(token for _, ids in kept for token in ids)]
    return EncodeRequest((*context, *line), len(context), len(context) + len(line), tuple(item for item, _ in kept))
