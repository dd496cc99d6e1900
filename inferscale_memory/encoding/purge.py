"""Deleting the files of tombstoned chunks."""

from __future__ import annotations

from inferscale_memory import metrics
from inferscale_memory.encoding.engine import ChunkFiles
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.errors import StoreError


def purge(ledger: ChunkLedger, chunk_store: ChunkFiles) -> int:
    """Delete the files of every tombstoned chunk, then its tombstone. Safe to call at any time, from any process.

    Call it after the transaction of a deletion has committed, and at start: a crash in between leaves the tombstones,
    and the next call finishes the work. A chunk whose encode is still in flight keeps its tombstone, so that a file
    written late is deleted too.

    Returns:
        How many chunks had a file.

    Raises:
        StoreError: a file could not be removed; its tombstone stays.
    """
    if not ledger.tombstones():  # a read; claiming takes the write lock
        return 0
    keys = ledger.claim_tombstones()
    if not keys:
        return 0
    try:
        deleted = chunk_store.delete(keys)
    except StoreError:
        # Whoever can may try next, without waiting for this process's claim to run out.
        ledger.unclaim_tombstones(keys)
        raise
    ledger.clear_tombstones(keys)
    metrics.CHUNKS_PURGED.inc(deleted)
    return deleted
