"""The queries behind the derived queue: what waits, what failed, what a dead process left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from inferscale_memory.encoding import leases
from inferscale_memory.encoding._burial import bury
from inferscale_memory.encoding.records import ParkedFact
from inferscale_memory.encoding.tables import PENDING, READY, ChunkRow, EncodeFailureRow, EncodeLeaseRow
from inferscale_memory.facts.rows import visible
from inferscale_memory.facts.tables import FactRow
from inferscale_memory.scope import Scope


def covered(scope: Scope | None) -> list[ColumnElement[bool]]:
    """Conditions on facts for ``Scope.covers``; none without a scope."""
    return [] if scope is None else [visible(FactRow, scope)]


def waiting(tx: Session, fingerprint: str, policy: str, limit: int, scope: Scope | None) -> list[str]:
    """See ``ChunkLedger.waiting``."""
    at_work = and_(ChunkRow.state == PENDING, ChunkRow.owner.in_(leases.live_owners(tx)))
    query = _without_chunk(select(FactRow.id), fingerprint, policy, or_(ChunkRow.state == READY, at_work))
    return list(tx.scalars(query.where(*covered(scope)).order_by(FactRow.seq).limit(limit)))


def unfinished(tx: Session, fingerprint: str, policy: str, scope: Scope | None) -> int:
    """See ``ChunkLedger.unfinished``."""
    query = _without_chunk(select(func.count(FactRow.id)), fingerprint, policy, ChunkRow.state == READY)
    return tx.scalar(query.where(*covered(scope))) or 0


def parked(tx: Session, fingerprint: str, policy: str, scope: Scope | None) -> list[ParkedFact]:
    """See ``ChunkLedger.parked``."""
    rows = tx.scalars(
        select(EncodeFailureRow)
        .join(FactRow, and_(FactRow.id == EncodeFailureRow.fact_id, FactRow.revision == EncodeFailureRow.revision))
        .where(EncodeFailureRow.fingerprint == fingerprint, EncodeFailureRow.policy == policy)
        .where(EncodeFailureRow.parked.is_(True), *covered(scope))
        .order_by(EncodeFailureRow.at, FactRow.seq)
    )
    return [ParkedFact(r.fact_id, r.revision, r.attempts, r.reason, r.at) for r in rows]


def reset_pending(tx: Session, live: Sequence[str]) -> int:
    """See ``ChunkLedger.reset_pending``; ``live`` are the owners whose pending chunks stay."""
    left = select(ChunkRow.key).where(
        ChunkRow.state == PENDING, or_(ChunkRow.owner.is_(None), ChunkRow.owner.not_in(live))
    )
    current = exists().where(FactRow.id == ChunkRow.fact_id, FactRow.revision == ChunkRow.revision)
    outdated: Sequence[str] = tx.scalars(select(ChunkRow.key).where(~current)).all()
    over = tx.scalars(left).all()
    bury(tx, over, in_flight=False)
    bury(tx, outdated)
    expired = datetime.now(UTC) - leases.LEASE
    tx.execute(delete(EncodeLeaseRow).where(EncodeLeaseRow.owner.not_in(live), EncodeLeaseRow.renewed_at < expired))
    return len({*over, *outdated})


def is_parked(fingerprint: str, policy: str) -> ColumnElement[bool]:
    """Condition on facts: the current revision is set aside."""
    return exists().where(
        EncodeFailureRow.fact_id == FactRow.id, EncodeFailureRow.fingerprint == fingerprint,
        EncodeFailureRow.policy == policy, EncodeFailureRow.revision == FactRow.revision,
        EncodeFailureRow.parked.is_(True),
    )  # fmt: skip


def _without_chunk(query: Select[Any], fingerprint: str, policy: str, state: ColumnElement[bool]) -> Select[Any]:
    """Facts whose current revision has no chunk in ``state`` and is not parked."""
    chunk = exists().where(
        ChunkRow.fact_id == FactRow.id, ChunkRow.fingerprint == fingerprint, ChunkRow.policy == policy,
        ChunkRow.revision == FactRow.revision, state,
    )  # fmt: skip
    return query.where(~chunk, ~is_parked(fingerprint, policy))
