"""Facts read before: which revision is current is asked of the database every time, what it says is kept."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from inferscale_memory.facts.models import Fact
from inferscale_memory.facts.rows import batches, sources_of, to_fact
from inferscale_memory.facts.tables import FactRow

CAPACITY = 20_000


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

    def __len__(self) -> int:
        return len(self._facts)

    def read(self, session: Session, ids: Iterable[str]) -> dict[str, Fact]:
        """The facts with these ids as the database has them now; missing ones are left out."""
        found: dict[str, Fact] = {}
        stale: list[str] = []
        for some in batches(ids):
            rows = session.execute(select(FactRow.id, FactRow.revision).where(FactRow.id.in_(some)))
            current = {row.id: row.revision for row in rows}
            for fact_id in some:
                fact = self._kept(fact_id, current.get(fact_id))
                if fact is not None:
                    found[fact_id] = fact
                elif fact_id in current:
                    stale.append(fact_id)
        fresh: list[Fact] = []
        for some in batches(stale):
            fresh += [to_fact(row, ()) for row in session.scalars(select(FactRow).where(FactRow.id.in_(some)))]
        self._keep(fresh)
        found.update((fact.id, fact) for fact in fresh)
        for fact_id, turn_ids in sources_of(session, list(found)).items():
            found[fact_id] = replace(found[fact_id], turn_ids=tuple(turn_ids))
        return found

    def forget(self, ids: Iterable[str]) -> None:
        """Drop what is kept of deleted facts."""
        with self._lock:
            for fact_id in ids:
                self._facts.pop(fact_id, None)

    def _kept(self, fact_id: str, revision: int | None) -> Fact | None:
        """What is kept of this revision; what is kept of another, or of a missing fact (``None``), is dropped."""
        with self._lock:
            fact = self._facts.get(fact_id)
            if fact is None:
                return None
            if fact.revision != revision:
                del self._facts[fact_id]
                return None
            self._facts.move_to_end(fact_id)
            # Metadata is plain data, which the one who is given it may change.
            return replace(fact, metadata=copy.deepcopy(fact.metadata))

    def _keep(self, facts: Iterable[Fact]) -> None:
        with self._lock:
            for fact in facts:
                if self._capacity:
                    self._facts[fact.id] = replace(fact, metadata=copy.deepcopy(fact.metadata))
            while len(self._facts) > self._capacity:
                self._facts.popitem(last=False)
