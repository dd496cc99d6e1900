"""Deleting: the fact, its revisions, vectors and idempotency keys, and the text of the turns it came from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from inferscale_memory.facts.derived import raise_epoch
from inferscale_memory.facts.models import Fact
from inferscale_memory.facts.rows import batches, log_change, to_facts
from inferscale_memory.facts.session import scrub_after_commit, take_numbers
from inferscale_memory.facts.tables import FactRow, IdempotencyRow, RevisionRow, SourceRow, TurnRow, VectorRow

_UNSYNCED = {"synchronize_session": False}


def erase(session: Session, rows: Sequence[FactRow]) -> list[Fact]:
    """Remove facts and every trace of their text; returns them as they were.

    A turn is a verbatim trace: it goes with its fact. Where another fact still names it as a source the row stays,
    without text. The principals' epochs are raised, and SQLite's file is wiped after the commit.
    """
    removed = to_facts(session, rows)
    ids = [fact.id for fact in removed]
    turn_ids = [turn_id for fact in removed for turn_id in fact.turn_ids]
    for row in rows:
        session.expunge(row)
    for some in batches(ids):
        # Spelled out, not left to ON DELETE CASCADE: a database that does not enforce it would keep the text.
        for model in (IdempotencyRow, VectorRow, RevisionRow, SourceRow):
            session.execute(delete(model).where(model.fact_id.in_(some)), execution_options=_UNSYNCED)
        session.execute(delete(FactRow).where(FactRow.id.in_(some)), execution_options=_UNSYNCED)
    erase_turns(session, turn_ids)
    numbers = take_numbers(session, len(removed))
    for fact in removed:
        log_change(session, next(numbers), fact.id, fact.scope.principal, "delete")
    for scope in {fact.scope.principal: fact.scope for fact in removed}.values():
        raise_epoch(session, scope)
    session.flush()
    return removed


def erase_turns(session: Session, turn_ids: Sequence[str]) -> None:
    """Remove turns; those that a fact still names lose their text only."""
    for some in batches(turn_ids):
        named = set(session.scalars(select(SourceRow.turn_id).where(SourceRow.turn_id.in_(some))))
        free = [turn_id for turn_id in some if turn_id not in named]
        session.execute(delete(TurnRow).where(TurnRow.id.in_(free)), execution_options=_UNSYNCED)
        session.execute(update(TurnRow).where(TurnRow.id.in_(named)).values(text=""), execution_options=_UNSYNCED)
    session.expire_all()
    scrub_after_commit(session)
