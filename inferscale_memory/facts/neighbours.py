"""What came before a fact: the candidates for the context it is encoded in."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.models import Fact, Turn
from inferscale_memory.facts.rows import companions, to_facts, to_turn
from inferscale_memory.facts.tables import FactRow, SourceRow, TurnRow

SESSION = "session"
"""Key of the metadata that names a conversation session, where the scope does not."""
LOOK_BACK = 1000
"""Facts among which those of the same session are looked for: metadata is no column, so each is read."""


def preceding_facts(session: Session, fact: Fact, n: int) -> list[Fact]:
    """See ``FactStore.preceding_facts``."""
    _check_count(n)
    query = (
        select(FactRow)
        .where(companions(FactRow, fact.scope), FactRow.seq < fact.seq)
        .order_by(FactRow.seq.desc())
        .limit(n)
    )
    return to_facts(session, list(reversed(session.scalars(query).all())))


def session_facts(session: Session, fact: Fact, n: int) -> list[Fact] | None:
    """See ``FactStore.session_facts``."""
    _check_count(n)
    if fact.scope.session is not None:
        return preceding_facts(session, fact, n)  # companions are of the same session anyway
    said_in = fact.metadata.get(SESSION)
    if said_in is None:
        return None
    query = (
        select(FactRow.id, FactRow.meta)
        .where(companions(FactRow, fact.scope), FactRow.seq < fact.seq)
        .order_by(FactRow.seq.desc())
        .limit(LOOK_BACK)
    )
    ids = [row.id for row in session.execute(query) if row.meta.get(SESSION) == said_in][:n]
    rows = session.scalars(select(FactRow).where(FactRow.id.in_(ids)).order_by(FactRow.seq)).all()
    return to_facts(session, rows)


def preceding_turns(session: Session, fact: Fact, n: int) -> list[Turn]:
    """See ``FactStore.preceding_turns``."""
    _check_count(n)
    sources = select(SourceRow.turn_id).where(SourceRow.fact_id == fact.id)
    first = session.scalar(select(func.min(TurnRow.seq)).where(TurnRow.id.in_(sources)))
    if first is None:
        return []
    query = (
        select(TurnRow)
        .where(companions(TurnRow, fact.scope), TurnRow.seq < first, TurnRow.text != "")
        .order_by(TurnRow.seq.desc())
        .limit(n)
    )
    return [to_turn(row) for row in reversed(session.scalars(query).all())]


def _check_count(n: int) -> None:
    if n < 0:
        raise InvalidInputError(f"n must be 0 or more, got {n}.")
