"""Changing one fact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.derived import raise_epoch
from inferscale_memory.facts.models import Fact
from inferscale_memory.facts.rows import check_metadata, find, log_change, now, text_key, to_facts
from inferscale_memory.facts.session import take_numbers
from inferscale_memory.facts.tables import FactRow, RevisionRow
from inferscale_memory.scope import Scope
from inferscale_memory.text import check_text


def revise(
    session: Session,
    fact_id: str,
    scope: Scope,
    text: str | None,
    metadata: Mapping[str, Any] | None,
    *,
    max_chars: int,
) -> Fact:
    """See ``FactStore.update``; inside the caller's write transaction."""
    if text is not None:
        check_text(text, max_chars=max_chars)
    meta = None if metadata is None else check_metadata(metadata)
    row = find(session, fact_id, scope)
    if (text is None or text == row.text) and (meta is None or meta == row.meta):
        return to_facts(session, [row])[0]
    if text is not None:
        row.text_key = _free_key(session, row, text)
        row.text = text
    if meta is not None:
        row.meta = meta
    row.revision += 1
    row.updated_at = now()
    numbers = take_numbers(session, 2)
    session.add(
        RevisionRow(
            seq=next(numbers),
            fact_id=row.id,
            revision=row.revision,
            text=row.text,
            meta=row.meta,
            at=row.updated_at,
            kind="update",
        )
    )
    log_change(session, next(numbers), row.id, row.principal, "upsert")
    raise_epoch(session, row.scope)
    return to_facts(session, [row])[0]


def _free_key(session: Session, row: FactRow, text: str) -> str:
    key = text_key(row.scope, text)
    same = select(FactRow.id).where(FactRow.scope_key == row.scope_key, FactRow.text_key == key, FactRow.id != row.id)
    other = session.scalar(same)
    if other is not None:
        raise InvalidInputError(f"fact {other!r} of the same scope already says this; delete one of the two.")
    return key
