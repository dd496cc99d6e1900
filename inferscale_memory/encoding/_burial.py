"""Tombstones: chunk files to be deleted, remembered until they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from inferscale_memory.encoding import leases
from inferscale_memory.encoding.tables import ChunkContextRow, ChunkRow, TombstoneRow
from inferscale_memory.facts.rows import batches


def bury(tx: Session, keys: Sequence[str], *, in_flight: bool = True) -> None:
    """Turn chunk rows into tombstones. Keys without a row are left alone.

    Args:
        tx: the transaction to do it in.
        keys: chunk keys.
        in_flight: keep who is encoding a pending chunk, whose file may still be written. False where its own encoder
            calls, which has finished with it.
    """
    now = datetime.now(UTC)
    for some in batches(keys):
        rows = tx.execute(select(ChunkRow.key, ChunkRow.owner).where(ChunkRow.key.in_(some))).all()
        there = set(tx.scalars(select(TombstoneRow.key).where(TombstoneRow.key.in_(some))))
        tx.add_all(
            TombstoneRow(key=key, at=now, owner=owner if in_flight else None) for key, owner in rows if key not in there
        )
        tx.execute(delete(ChunkContextRow).where(ChunkContextRow.chunk_key.in_(some)))
        tx.execute(delete(ChunkRow).where(ChunkRow.key.in_(some)))
    tx.flush()


def claim(tx: Session, owner: str) -> list[str]:
    """Tombstones that ``owner`` is to delete the files of.

    Two processes deleting the same file would be harmless, but a slow one could delete what was encoded anew under the
    same key after the quick one was done.
    """
    now = datetime.now(UTC)
    leases.renew(tx, owner)
    claimers = tx.scalars(select(TombstoneRow.claimed_by).where(TombstoneRow.claimed_by.is_not(None)).distinct())
    free = or_(
        TombstoneRow.claimed_by.is_(None),
        TombstoneRow.claimed_by.in_([owner, *(c for c in claimers if c is not None and not leases.process_exists(c))]),
        TombstoneRow.claimed_at < now - leases.LEASE,
    )
    tx.execute(update(TombstoneRow).where(free).values(claimed_by=owner, claimed_at=now))
    return list(tx.scalars(select(TombstoneRow.key).where(TombstoneRow.claimed_by == owner)))


def clear(tx: Session, keys: Sequence[str], live: Sequence[str]) -> None:
    """Remove tombstones, but only release those whose file an owner in ``live`` may still write."""
    for some in batches(keys):
        mine = TombstoneRow.key.in_(some)
        tx.execute(delete(TombstoneRow).where(mine, or_(TombstoneRow.owner.is_(None), TombstoneRow.owner.not_in(live))))
    unclaim(tx, keys)


def unclaim(tx: Session, keys: Sequence[str]) -> None:
    """Let others delete the files of these tombstones."""
    for some in batches(keys):
        tx.execute(update(TombstoneRow).where(TombstoneRow.key.in_(some)).values(claimed_by=None, claimed_at=None))
