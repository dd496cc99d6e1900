"""From what an application hands in (text, texts, chat messages) to turns and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.messages import read_message
from inferscale_memory.facts.models import NewFact, NewTurn
from inferscale_memory.handles.text import strip_handles
from inferscale_memory.text import MAX_FACT_CHARS

Content: TypeAlias = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
"""A text, a chat message, or a list of either."""

FACT_ROLES = frozenset({"user", "assistant"})


class FactExtractor(Protocol):
    """Decides what of a conversation is remembered."""

    def extract(self, turns: Sequence[NewTurn]) -> list[NewFact]:
        """Facts stated in ``turns``, in order.

        Args:
            turns: sound turns of one call, every role included, oldest first.

        Returns:
            Facts whose ``turn_ids`` name the turns they come from (so that a retry is recognised, and deleting a fact
            deletes the words it came from) and whose ``index`` is that of such a turn.
        """
        ...


class VerbatimExtractor:
    """Each user or assistant message is a fact, ``"{speaker}: {text}"``; other roles are kept as turns only.

    The speaker is the message's ``name``, else its role with a capital: ``"User: I live in Graz."``
    """

    def extract(self, turns: Sequence[NewTurn]) -> list[NewFact]:
        """See ``FactExtractor``."""
        facts = []
        for turn in turns:
            if turn.role not in FACT_ROLES:
                continue
            speaker = turn.speaker or turn.role.capitalize()
            facts.append(
                NewFact(
                    text=f"{speaker}: {turn.text}",
                    speaker=speaker,
                    turn_ids=(turn.id,),
                    created_at=turn.created_at,
                    index=turn.index,
                )
            )
        return facts


class Coerced(NamedTuple):
    """Arguments of ``FactStore.add``."""

    turns: list[NewTurn]
    facts: list[NewFact]
    """Good and bad: a bad item carries its ``refusal`` and becomes an ``ItemError`` in ``add``."""


def coerce_items(
    content: Content,
    *,
    extractor: FactExtractor | None = None,
    metadata: Mapping[str, Any] | None = None,
    max_chars: int = MAX_FACT_CHARS,
) -> Coerced:
    """Read whatever an application saves; ``index`` of each result is its place in ``content``.

    A text is a fact as it stands, a message a turn whose facts ``extractor`` finds. KV handles are removed from both.
    A message without words (a tool call, an image) is passed over. An item that cannot be saved does not raise:
    it is among the facts, with the reason.

    Args:
        content: a text, a chat message (see ``messages.read_message``), or a list of either.
        extractor: for messages; ``VerbatimExtractor`` where None.
        metadata: given to every fact that has none of its own.
        max_chars: longest text taken; give ``FactStore.max_fact_chars``.

    Raises:
        InvalidInputError: ``content`` is none of these, or an empty list.
    """
    items = _as_list(content)
    turns: list[NewTurn] = []
    facts: list[NewFact] = []
    for index, item in enumerate(items):
        if isinstance(item, Mapping):
            try:
                turn = read_message(item, index, max_chars=max_chars)
            except InvalidInputError as error:
                facts.append(NewFact(text=_words(item), index=index, refusal=str(error)))
            else:
                turns.extend([] if turn is None else [turn])
        elif isinstance(item, str):
            facts.append(NewFact(text=strip_handles(item), index=index))
        else:
            refusal = f"an item must be a string or a chat message, got {type(item).__name__}."
            facts.append(NewFact(text="", index=index, refusal=refusal))
    facts.extend((extractor or VerbatimExtractor()).extract(turns))
    facts.sort(key=lambda fact: -1 if fact.index is None else fact.index)
    return Coerced(turns, [_with_metadata(fact, metadata) for fact in facts])


def _as_list(content: object) -> Sequence[object]:
    if isinstance(content, str | Mapping):
        return [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise InvalidInputError(
            f"cannot remember {type(content).__name__}; give a text, a list of texts, or chat messages with 'role' "
            "and 'content'."
        )
    if not content:
        raise InvalidInputError("nothing to remember: the list is empty.")
    return content


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _with_metadata(fact: NewFact, metadata: Mapping[str, Any] | None) -> NewFact:
    if metadata is None or fact.metadata is not None:
        return fact
    return replace(fact, metadata=metadata)
