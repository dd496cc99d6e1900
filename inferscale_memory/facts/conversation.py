"""Turns as a conversation: the newest of them, and what was remembered of each."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.models import Turn
from inferscale_memory.facts.rows import batches, to_turn, within
from inferscale_memory.facts.tables import SourceRow, TurnRow
from inferscale_memory.scope import Scope


def newest_turns(session: Session, scope: Scope, limit: int | None) -> list[Turn]:
    """The newest ``limit`` turns that name all that ``scope`` names, oldest first; those without text are left out.

    A search sees upwards (a session sees what is known of its user in general), a transcript does not: what was said
    in no session is no part of this one.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidInputError(f"limit is {limit!r}; wanted a number of turns, 1 or more, or None for all.")
    query = select(TurnRow).where(within(TurnRow, scope), TurnRow.text != "").order_by(TurnRow.seq.desc())
    return [to_turn(row) for row in reversed(session.scalars(query.limit(limit)).all())]


def facts_of_turns(session: Session, turn_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """See ``FactStore.facts_of_turns``."""
    found: dict[str, list[str]] = {}
    for some in batches(turn_ids):
        query = select(SourceRow.turn_id, SourceRow.fact_id).where(SourceRow.turn_id.in_(some)).order_by(SourceRow.seq)
        for turn_id, fact_id in session.execute(query):
            found.setdefault(turn_id, []).append(fact_id)
    return {turn_id: tuple(fact_ids) for turn_id, fact_ids in found.items()}
