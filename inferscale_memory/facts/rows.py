"""From rows to values, and the scope rules in SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from inferscale_memory.errors import FactNotFoundError, InvalidInputError
from inferscale_memory.facts.models import ChangeKind, Fact, Revision, Turn
from inferscale_memory.facts.tables import ChangeRow, FactRow, RevisionRow, ScopeColumns, SourceRow, TurnRow
from inferscale_memory.scope import Scope, digest
from inferscale_memory.text import normalise

MAX_METADATA_CHARS = 64_000
# Well under every database's limit on bound parameters.
_BATCH = 500

T = TypeVar("T")


def now() -> datetime:
    """The current time, aware."""
    return datetime.now(UTC)


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most 500 of the distinct items, for ``IN``."""
    distinct = list(dict.fromkeys(items))
    for start in range(0, len(distinct), _BATCH):
        yield distinct[start : start + _BATCH]


def text_key(scope: Scope, text: str) -> str:
    """Digest by which two texts of one scope are the same fact."""
    return digest("text", scope.key, normalise(text))


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """A JSON copy of ``metadata`` (tuples become lists, as they would on reading); ``None`` is empty.

    Raises:
        InvalidInputError: not a mapping, not JSON (NaN included), not valid Unicode, or longer than 64,000 characters.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata must be a mapping, got {type(metadata).__name__}.")
    try:
        encoded = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        encoded.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"metadata cannot be written as JSON: {error}. Use strings, numbers, booleans, None, lists and dicts."
        ) from error
    if len(encoded) > MAX_METADATA_CHARS:
        raise InvalidInputError(
            f"metadata is {len(encoded)} characters of JSON, at most {MAX_METADATA_CHARS} are taken. "
            "Keep large values elsewhere and store a reference."
        )
    return json.loads(encoded)


def visible(model: type[ScopeColumns], scope: Scope) -> ColumnElement[bool]:
    """``Scope.covers`` in SQL: the principal equal; a given agent or session equal or not named by the row."""
    rules: list[ColumnElement[bool]] = [model.principal == scope.principal]
    for column, value in ((model.agent_id, scope.agent), (model.session_id, scope.session)):
        if value is not None:
            rules.append(or_(column.is_(None), column == value))
    return and_(*rules)


def within(model: type[ScopeColumns], scope: Scope) -> ColumnElement[bool]:
    """Rows that name everything that ``scope`` names. What a bulk delete may touch: it does not reach upwards."""
    rules: list[ColumnElement[bool]] = [model.principal == scope.principal]
    for column, value in ((model.agent_id, scope.agent), (model.session_id, scope.session)):
        if value is not None:
            rules.append(column == value)
    return and_(*rules)


def companions(model: type[ScopeColumns], scope: Scope) -> ColumnElement[bool]:
    """``Scope.accompanies`` in SQL: rows behind which a fact of ``scope`` may be encoded."""
    agent = model.agent_id.is_(None)
    return and_(
        model.principal == scope.principal,
        agent if scope.agent is None else or_(agent, model.agent_id == scope.agent),
        model.session_id.is_(None) if scope.session is None else model.session_id == scope.session,
    )


def scope_columns(scope: Scope) -> dict[str, str | None]:
    """Keyword arguments of ``ScopeColumns``."""
    return {
        "tenant": scope.tenant,
        "user_id": scope.user,
        "agent_id": scope.agent,
        "session_id": scope.session,
        "principal": scope.principal,
        "scope_key": scope.key,
    }


def find(session: Session, fact_id: str, scope: Scope) -> FactRow:
    """The fact if ``scope`` may see it.

    Raises:
        FactNotFoundError: it may not, or there is none; the two cannot be told apart.
    """
    row = None
    # What was never an id is not worth a query, and drivers refuse some of it (lone surrogates, NUL).
    if isinstance(fact_id, str) and fact_id.isalnum() and fact_id.isascii():
        row = session.scalar(select(FactRow).where(FactRow.id == fact_id, visible(FactRow, scope)))
    if row is None:
        raise FactNotFoundError(f"no fact {fact_id!r} in the scope {scope}. List the scope to see what it holds.")
    return row


def to_facts(session: Session, rows: Sequence[FactRow]) -> list[Fact]:
    """The rows as values, in their order, with their sources."""
    sources: dict[str, list[str]] = {}
    for ids in batches(row.id for row in rows):
        query = select(SourceRow.fact_id, SourceRow.turn_id).where(SourceRow.fact_id.in_(ids)).order_by(SourceRow.seq)
        for fact_id, turn_id in session.execute(query):
            sources.setdefault(fact_id, []).append(turn_id)
    return [to_fact(row, sources.get(row.id, ())) for row in rows]


def to_fact(row: FactRow, turn_ids: Sequence[str]) -> Fact:
    """The row as a value; ``turn_ids`` are its sources, oldest first."""
    return Fact(
        id=row.id,
        text=row.text,
        scope=row.scope,
        revision=row.revision,
        speaker=row.speaker,
        turn_ids=tuple(turn_ids),
        metadata=dict(row.meta),
        created_at=row.created_at,
        updated_at=row.updated_at,
        seq=row.seq,
    )


def to_turn(row: TurnRow) -> Turn:
    """The row as a value."""
    return Turn(
        id=row.id,
        external_id=row.external_id,
        role=row.role,
        speaker=row.speaker,
        text=row.text,
        scope=row.scope,
        created_at=row.created_at,
        seq=row.seq,
    )


def to_revision(row: RevisionRow) -> Revision:
    """The row as a value."""
    return Revision(
        fact_id=row.fact_id,
        revision=row.revision,
        text=row.text,
        metadata=dict(row.meta),
        at=row.at,
        kind=row.kind,  # type: ignore[arg-type]
    )


def log_change(session: Session, seq: int, fact_id: str, principal: str, kind: ChangeKind) -> None:
    """Append a line to the change log."""
    session.add(ChangeRow(seq=seq, fact_id=fact_id, principal=principal, kind=kind))
