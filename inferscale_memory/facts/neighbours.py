"""What came before a fact: the candidates for the context it is encoded in."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.models import Fact, Turn
from inferscale_memory.facts.rows import companions, to_facts, to_turn
from inferscale_memory.facts.tables import FactRow, SourceRow, TurnRow


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
