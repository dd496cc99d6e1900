"""Facts read before: which revision is current is asked of the database every time, what it says is kept."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from inferscale_memory.facts.models import Fact
from inferscale_memory.facts.rows import batches, to_fact
from inferscale_memory.facts.tables import FactRow, SourceRow

CAPACITY = 20_000

_FACTS, _SOURCES = FactRow.__table__.c, SourceRow.__table__.c
_CURRENT = (
    select(_FACTS.id, _FACTS.revision, _SOURCES.turn_id)
    .join_from(FactRow.__table__, SourceRow.__table__, _SOURCES.fact_id == _FACTS.id, isouter=True)
    .where(_FACTS.id.in_(bindparam("ids", expanding=True)))
    .order_by(_SOURCES.seq)
)


class KnownFacts:
    """Reads facts by id, and makes a value of a row once per revision. Safe to share between threads.

    A revision never changes its text or metadata, so nothing outdated can be given out: what is deleted, and which
    revision counts, is read each time. Sources may be added to a revision, and are read each time too. A fact that
    is found missing is dropped here as well.

    Args:
        capacity: facts kept, those asked for last.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._facts: OrderedDict[str, Fact] = OrderedDict()
        self._lock = threading.Lock()
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._facts)

    def read(self, session: Session, ids: Iterable[str]) -> dict[str, Fact]:
        """The facts with these ids as the database has them now; missing ones are left out."""
        current: dict[str, int] = {}
        sources: dict[str, list[str]] = {}
        # Below the ORM: it would take most of the time of this, which stands in the way of every question.
        forgotten = self._forgotten
        session.flush()
        connection = session.connection()
        for some in batches(ids):
            for fact_id, revision, turn_id in connection.execute(_CURRENT, {"ids": some}):
                current[fact_id] = revision
                if turn_id is not None:
                    sources.setdefault(fact_id, []).append(turn_id)
            self._drop([fact_id for fact_id in some if fact_id not in current])
        kept = self._kept(current)
        for some in batches(fact_id for fact_id in current if fact_id not in kept):
            fresh = [to_fact(row, ()) for row in session.scalars(select(FactRow).where(FactRow.id.in_(some)))]
            self._keep(fresh, forgotten)
            kept.update((fact.id, fact) for fact in fresh)
        # Metadata is plain data, which the one who is given it may change.
        return {
            fact_id: replace(fact, turn_ids=tuple(sources.get(fact_id, ())), metadata=copy.deepcopy(fact.metadata))
            for fact_id, fact in kept.items()
        }

    def forget(self, ids: Iterable[str]) -> None:
        """Drop what is kept of deleted facts."""
        with self._lock:
            self._forgotten += 1
        self._drop(ids)

    def _drop(self, ids: Iterable[str]) -> None:
        with self._lock:
            for fact_id in ids:
                self._facts.pop(fact_id, None)

    def _kept(self, current: Mapping[str, int]) -> dict[str, Fact]:
        """What is kept of these revisions; what is kept of other ones is dropped."""
        found: dict[str, Fact] = {}
        with self._lock:
            for fact_id, revision in current.items():
                fact = self._facts.get(fact_id)
                if fact is not None and fact.revision == revision:
                    self._facts.move_to_end(fact_id)
                    found[fact_id] = fact
                elif fact is not None:
                    del self._facts[fact_id]
        return found

    def _keep(self, facts: Iterable[Fact], forgotten: int) -> None:
        with self._lock:
            if forgotten != self._forgotten:  # something was deleted since these rows were read: perhaps one of them
                return
            self._facts.update((fact.id, fact) for fact in facts)
            while len(self._facts) > self._capacity:
                self._facts.popitem(last=False)
