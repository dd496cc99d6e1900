"""The values that the fact store takes and hands out. All are frozen; none is tied to a database session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from inferscale_memory.scope import Scope

RevisionKind = Literal["add", "update", "source"]
ChangeKind = Literal["upsert", "delete"]


@dataclass(frozen=True)
class NewTurn:
    """A message about to be saved, sound or not (the store checks it).

    ``id`` is the caller's own message id. It must be the same when the same message is sent again, and it need be
    unique only within the scope. Left out, a new one is made, and a retry cannot be told from a repetition.
    """

    role: str
    text: str
    speaker: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_at: datetime | None = None
    index: int | None = None
    """Place in the caller's input, used to name it in an ``ItemError``. None: its place in the call."""


@dataclass(frozen=True)
class NewFact:
    """A statement about to be saved, sound or not (the store checks it)."""

    text: str
    speaker: str | None = None
    metadata: Mapping[str, Any] | None = None
    turn_ids: tuple[str, ...] = ()
    """``NewTurn.id`` of its sources: turns of the same call, or turns saved before in the same scope."""
    created_at: datetime | None = None
    """When it was stated; None: now."""
    index: int | None = None
    """Place in the caller's input, used to name it in an ``ItemError``. None: its place in the call."""
    refusal: str | None = None
    """Why it cannot be saved, where that was found before the store saw it; it then only yields an ``ItemError``."""


@dataclass(frozen=True)
class Fact:
    """One remembered statement."""

    id: str
    text: str
    """As it was given, not normalised."""
    scope: Scope
    revision: int
    """1 when added, one more with every ``update``. A further source does not change it: text and vector stay valid."""
    speaker: str | None
    turn_ids: tuple[str, ...]
    """Ids of its source turns (``Turn.id``), oldest source first; empty where it was not said in a conversation."""
    metadata: dict[str, Any] = field(hash=False)
    """Plain data. Keys such as ``user_id`` mean nothing to the store and never change the scope."""
    created_at: datetime
    updated_at: datetime
    seq: int
    """Monotone order of insertion within the database; has gaps."""


@dataclass(frozen=True)
class Turn:
    """One saved message."""

    id: str
    """Unique in the database; derived from the scope and ``external_id``."""
    external_id: str
    """The id that the caller gave it (``NewTurn.id``), unique within the scope only."""
    role: str
    speaker: str | None
    text: str
    """Empty once a fact that came from it was deleted while another fact still names it as a source."""
    scope: Scope
    created_at: datetime
    seq: int


@dataclass(frozen=True)
class Revision:
    """One line of a fact's history: what its text and metadata were from ``at`` on.

    A ``source`` line says that the same statement was made again. It repeats the revision number, and its metadata is
    what came with the repetition (the fact's own stays as it was).
    """

    fact_id: str
    revision: int
    text: str
    metadata: dict[str, Any] = field(hash=False)
    at: datetime
    kind: RevisionKind


@dataclass(frozen=True)
class ItemError:
    """One item of a batch that was not saved."""

    index: int
    """Place in the caller's input, from 0."""
    reason: str
    preview: str
    """The first characters of the item, safe to print."""


@dataclass(frozen=True)
class AddResult:
    """What a save did: ``len(facts) + len(errors)`` items were given, unless turns were refused as well."""

    facts: tuple[Fact, ...]
    """One per good item, in input order; facts that were there already included, so one may stand here twice."""
    created: tuple[str, ...]
    """Ids of the facts that are new."""
    errors: tuple[ItemError, ...]
    """The bad items, by index."""


class Page(NamedTuple):
    """A part of a list."""

    facts: tuple[Fact, ...]
    next_cursor: str | None
    """Pass it as ``cursor`` for what follows; None at the end."""


class Change(NamedTuple):
    """One line of the change log."""

    seq: int
    fact_id: str
    principal: str
    kind: ChangeKind


class StoredVector(NamedTuple):
    """An embedding as saved: ``data`` is little-endian float32 bytes, made from the fact's text at ``revision``."""

    revision: int
    data: bytes
