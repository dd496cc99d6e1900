"""What is derived from facts and can be rebuilt: epochs, the change log, vectors."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts.base import StoreBase
from inferscale_memory.facts.models import Change, StoredVector
from inferscale_memory.facts.rows import batches
from inferscale_memory.facts.tables import ChangeRow, EpochRow, FactRow, VectorRow
from inferscale_memory.scope import Scope

# Asked for every question, so made once and run below the ORM.
_EPOCH = select(EpochRow.__table__.c.epoch).where(EpochRow.__table__.c.principal == bindparam("principal"))
_LAST_CHANGE = select(func.max(ChangeRow.__table__.c.seq))


def epoch(session: Session, scope: Scope) -> int:
    """The KV epoch of the scope's principal, from 0."""
    session.flush()
    return session.connection().scalar(_EPOCH, {"principal": scope.principal}) or 0


def raise_epoch(session: Session, scope: Scope) -> int:
    """Raise it by one, inside a write transaction; returns the new one."""
    return raise_epoch_of(session, scope.principal)


def raise_epoch_of(session: Session, principal: str) -> int:
    """``raise_epoch`` where only the principal's digest is known."""
    row = session.get(EpochRow, principal)
    if row is None:
        row = EpochRow(principal=principal, epoch=0)
        session.add(row)
    row.epoch += 1
    session.flush()
    return row.epoch


def changes_since(session: Session, seq: int, limit: int) -> list[Change]:
    """At most ``limit`` changes after ``seq``, in order."""
    query = select(ChangeRow).where(ChangeRow.seq > seq).order_by(ChangeRow.seq).limit(limit)
    return [
        Change(row.seq, row.fact_id, row.principal, row.kind)  # type: ignore[arg-type]
        for row in session.scalars(query)
    ]


def last_change(session: Session) -> int:
    """Sequence number of the newest change, 0 where there is none."""
    session.flush()
    return session.connection().scalar(_LAST_CHANGE) or 0


def put_vectors(session: Session, embedder_id: str, rows: Iterable[tuple[str, int, bytes]]) -> int:
    """Save vectors of facts that are still there at that revision; returns how many.

    The others are dropped: a fact may have been deleted while it was embedded, and its vector must not come back.
    """
    given = {fact_id: StoredVector(revision, bytes(data)) for fact_id, revision, data in rows}
    for fact_id, vector in given.items():
        if not vector.data or len(vector.data) % 4:
            raise InvalidInputError(
                f"the vector of fact {fact_id!r} is {len(vector.data)} bytes, not a positive multiple of 4; "
                "pass np.asarray(v, np.float32).tobytes()."
            )
    saved = 0
    for ids in batches(given):
        rows_now = session.execute(select(FactRow.id, FactRow.revision).where(FactRow.id.in_(ids)))
        current = {row.id: row.revision for row in rows_now}
        query = select(VectorRow).where(VectorRow.embedder_id == embedder_id, VectorRow.fact_id.in_(ids))
        there = {row.fact_id: row for row in session.scalars(query)}
        for fact_id in ids:
            revision, data = given[fact_id]
            if current.get(fact_id) != revision:
                continue
            row = there.get(fact_id)
            if row is None:
                session.add(VectorRow(embedder_id=embedder_id, fact_id=fact_id, revision=revision, data=data))
            else:
                row.revision, row.data = revision, data
            saved += 1
    session.flush()
    return saved


def get_vectors(session: Session, embedder_id: str, ids: Iterable[str]) -> dict[str, StoredVector]:
    """Saved vectors by fact id; facts without one are left out. Compare ``revision`` with the fact's."""
    found: dict[str, StoredVector] = {}
    for some in batches(ids):
        query = select(VectorRow.fact_id, VectorRow.revision, VectorRow.data).where(
            VectorRow.embedder_id == embedder_id, VectorRow.fact_id.in_(some)
        )
        found.update((fact_id, StoredVector(revision, data)) for fact_id, revision, data in session.execute(query))
    return found


class DerivedData(StoreBase):
    """The part of ``FactStore`` that indexes and the encoder use."""

    def epoch(self, scope: Scope, *, tx: Session | None = None) -> int:
        """The KV epoch of the scope's principal, from 0; it never falls."""
        with self._read(tx) as session:
            return epoch(session, scope)

    def raise_epoch(self, scope: Scope, tx: Session | None = None) -> int:
        """Raise it by one and return it. ``update``, ``delete`` and ``delete_all`` do so themselves."""
        return self._write(lambda session: raise_epoch(session, scope), tx)

    def changes_since(self, seq: int, limit: int = 1000, *, tx: Session | None = None) -> list[Change]:
        """The change log after ``seq``, in order: what an index must read again or forget.

        Numbers have gaps, but a smaller one never appears after a larger one was seen. A fact without a change since
        is unchanged in text and metadata.
        """
        with self._read(tx) as session:
            return changes_since(session, seq, limit)

    def last_change(self, *, tx: Session | None = None) -> int:
        """Sequence number of the newest change, 0 where there is none."""
        with self._read(tx) as session:
            return last_change(session)

    def put_vectors(
        self, embedder_id: str, rows: Iterable[tuple[str, int, bytes]], *, tx: Session | None = None
    ) -> int:
        """Save embeddings: (fact id, revision of the text embedded, float32 bytes); returns how many were kept.

        Those of facts deleted or updated since are dropped.

        Raises:
            InvalidInputError: bytes that are no float32 vector.
        """
        given = tuple(rows)
        return self._write(lambda session: put_vectors(session, embedder_id, given), tx)

    def get_vectors(
        self, embedder_id: str, ids: Iterable[str], *, tx: Session | None = None
    ) -> dict[str, StoredVector]:
        """Saved embeddings by fact id; facts without one are left out."""
        with self._read(tx) as session:
            return get_vectors(session, embedder_id, ids)
