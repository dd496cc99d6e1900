"""Checks a batch before the database is touched: what can be saved, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.models import ItemError, NewFact, NewTurn
from inferscale_memory.facts.rows import check_metadata, text_key
from inferscale_memory.facts.tables import ID_CHARS, ROLE_CHARS
from inferscale_memory.scope import MAX_ID_CHARS, Scope, digest
from inferscale_memory.text import check_text, preview


@dataclass(frozen=True)
class SoundFact:
    """An item that can be saved."""

    position: int
    """Place among the items of the call."""
    index: int
    """Place in the caller's input."""
    text: str
    text_key: str
    save_key: str | None
    """What a retry is recognised by; None: by nothing but its text."""
    speaker: str | None
    metadata: dict[str, Any]
    sources: tuple[tuple[str, str], ...]
    """(id in the database, caller's id) of its source turns."""
    created_at: datetime | None

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Database ids of its source turns, each once."""
        return tuple(dict.fromkeys(turn_id for turn_id, _ in self.sources))

    def error(self, reason: str) -> ItemError:
        """This item, refused after all."""
        return ItemError(index=self.index, reason=reason, preview=preview(self.text))


@dataclass(frozen=True)
class Batch:
    """A checked call of ``add``."""

    facts: tuple[SoundFact, ...]
    turns: dict[str, NewTurn]
    """By database id."""
    cited: frozenset[str]
    """Turns that any item names, refused items included."""
    errors: tuple[ItemError, ...]


def turn_key(scope: Scope, external_id: str) -> str:
    """The database id of the turn that the caller calls ``external_id``: unique in the database, the same each time."""
    # Any id has a key, though one with a lone surrogate is refused later, with the item it belongs to.
    return digest("turn", scope.key, external_id.encode("utf-8", "surrogatepass"))[:ID_CHARS]


def check_batch(
    items: Sequence[NewFact], turns: Sequence[NewTurn], scope: Scope, *, idempotency_key: str | None, max_chars: int
) -> Batch:
    """Sort the call's items into sound ones and errors; nothing is raised for a bad item.

    Raises:
        InvalidInputError: the call itself is wrong: an item is not a ``NewFact``, or ``idempotency_key`` is blank.
    """
    if idempotency_key is not None and not (isinstance(idempotency_key, str) and idempotency_key.strip()):
        raise InvalidInputError(f"idempotency_key must be a non-blank string or None, got {idempotency_key!r}.")
    if idempotency_key is not None:
        check_text(idempotency_key, what="idempotency_key")
    errors: dict[int, ItemError] = {}
    sound_turns: dict[str, NewTurn] = {}
    for position, turn in enumerate(turns):
        index = position if turn.index is None else turn.index
        try:
            _check_turn(turn, max_chars)
        except InvalidInputError as error:
            errors[index] = ItemError(index, str(error), preview(turn.text))
        else:
            sound_turns.setdefault(turn_key(scope, turn.id), turn)
    facts: list[SoundFact] = []
    cited: set[str] = set()
    for position, item in enumerate(items):
        if not isinstance(item, NewFact):
            raise InvalidInputError(f"items must be NewFact values, got {type(item).__name__}; see coerce_items.")
        cited.update(turn_key(scope, name) for name in item.turn_ids if isinstance(name, str))
        index = position if item.index is None else item.index
        try:
            facts.append(_check_fact(replace(item, index=index), position, scope, idempotency_key, max_chars))
        except InvalidInputError as error:
            errors.setdefault(index, ItemError(index, str(error), preview(item.text)))
    return Batch(tuple(facts), sound_turns, frozenset(cited), tuple(errors.values()))


def _check_fact(item: NewFact, position: int, scope: Scope, batch_key: str | None, max_chars: int) -> SoundFact:
    if item.refusal is not None:
        raise InvalidInputError(item.refusal)
    text = check_text(item.text, max_chars=max_chars)
    metadata = check_metadata(item.metadata)
    _check_label("speaker", item.speaker, MAX_ID_CHARS)
    _check_time(item.created_at)
    for name in item.turn_ids:
        _check_label("turn id", name, MAX_ID_CHARS)
    key = text_key(scope, text)
    assert item.index is not None
    return SoundFact(
        position=position,
        index=item.index,
        text=text,
        text_key=key,
        save_key=_save_key(item, position, scope, batch_key),
        speaker=item.speaker,
        metadata=metadata,
        sources=tuple((turn_key(scope, name), name) for name in item.turn_ids),
        created_at=item.created_at,
    )


def _save_key(item: NewFact, position: int, scope: Scope, batch_key: str | None) -> str | None:
    """The given key and the item's place, else scope, turns and text.

    A text without a turn has nothing that tells a retry from saying it again: "I live in Paris", corrected to Rome,
    then "I live in Paris" once more must not be taken for a retry of the first. Its text alone recognises it.
    """
    if batch_key is not None:
        return digest("save", "key", scope.key, batch_key, str(position))
    if not item.turn_ids:
        return None
    return digest("save", "turn", scope.key, *item.turn_ids, item.text)


def _check_turn(turn: NewTurn, max_chars: int) -> None:
    check_text(turn.text, what="turn", max_chars=max_chars)
    _check_label("role", turn.role, ROLE_CHARS)
    _check_label("turn id", turn.id, MAX_ID_CHARS)
    _check_label("speaker", turn.speaker, MAX_ID_CHARS)
    _check_time(turn.created_at)


def _check_label(what: str, value: object, max_chars: int) -> None:
    if value is None and what == "speaker":
        return
    check_text(value, what=what, max_chars=max_chars)


def _check_time(value: datetime | None) -> None:
    if value is not None and value.tzinfo is None:
        raise InvalidInputError(f"the time {value!r} has no time zone; give it one, such as datetime.now(UTC).")
