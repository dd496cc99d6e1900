"""The encoding ledger: which chunk stands for which fact, who saw whom, and what is still to be encoded.

The queue is *derived*: a fact waits as long as no chunk of its current revision is ready, so a committed fact is found
after any crash. A chunk is recorded, with everything in its context, before its encode is sent, so every file that may
exist is known here and is found when something it carries traces of is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Engine, bindparam, delete, or_, select, update
from sqlalchemy.orm import Session

from inferscale_memory.encoding import _queue, leases
from inferscale_memory.encoding._burial import bury, claim, clear, unclaim
from inferscale_memory.encoding.policies import ContextItem
from inferscale_memory.encoding.records import ChunkRecord, ChunkRef, Forgotten, ParkedFact, chunk_owner
from inferscale_memory.encoding.staleness import (
    StaleChunks,
    announced_since,
    context_rows,
    mark_cut,
    note_fallback,
    replace_stale,
)
from inferscale_memory.encoding.tables import PENDING, READY, ChunkContextRow, ChunkRow, EncodeFailureRow, TombstoneRow
from inferscale_memory.errors import StoreError
from inferscale_memory.facts.rows import batches
from inferscale_memory.facts.session import Transactions
from inferscale_memory.facts.tables import FactRow, TurnRow
from inferscale_memory.scope import Scope

__all__ = ["ChunkLedger", "ChunkRecord", "ChunkRef", "Forgotten", "ParkedFact", "chunk_owner"]

_CHUNKS, _FACTS = ChunkRow.__table__.c, FactRow.__table__.c
_READY_CHUNKS = (
    select(_CHUNKS.fact_id, _CHUNKS.policy, _CHUNKS.key, _CHUNKS.revision, _CHUNKS.n_tokens)
    .join_from(
        ChunkRow.__table__,
        FactRow.__table__,
        (_FACTS.id == _CHUNKS.fact_id) & (_FACTS.revision == _CHUNKS.revision),
    )
    .where(_CHUNKS.fact_id.in_(bindparam("ids", expanding=True)), _CHUNKS.state == READY)
    .where(_CHUNKS.fingerprint == bindparam("fingerprint"))
    .where(_CHUNKS.policy.in_(bindparam("policies", expanding=True)))
    .order_by(_CHUNKS.created_at)
)


class ChunkLedger(StaleChunks):
    """Chunks, contexts and jobs in the database of the facts. Safe to share between threads and processes."""

    def __init__(self, engine: Engine) -> None:
        """Bind to a database whose tables exist (``migrations.upgrade``)."""
        self._transactions = Transactions(engine)
        self.owner = leases.new_owner()

    # --- one encode ---

    def begin(self, record: ChunkRecord) -> bool:
        """Record a chunk as pending; call it *before* the encode is sent.

        Returns:
            Whether to send it. False if the fact or something in its context was deleted or changed meanwhile, if the
            chunk is ready or at work in another live process, if a deleted chunk of this key has still to be purged, or
            if the fact has no vector because its turn to be embedded has not come yet.
        """
        with self._transactions.write() as tx:
            leases.renew(tx, self.owner)
            old = tx.get(ChunkRow, record.key)
            if old is not None:
                if old.fact_id != record.fact_id:
                    raise StoreError(
                        f"chunk {record.key[:12]} stands for fact {old.fact_id} and was to be encoded for "
                        f"{record.fact_id} too; make the key from `chunk_owner`, which is different for every fact."
                    )
                if old.state == READY or (old.owner != self.owner and old.owner in leases.live_owners(tx)):
                    return False
                tx.execute(delete(ChunkContextRow).where(ChunkContextRow.chunk_key == record.key))
                tx.execute(delete(ChunkRow).where(ChunkRow.key == record.key))
                tx.expunge(old)
            if tx.get(TombstoneRow, record.key) is not None or not _is_current(tx, record):
                return False
            if record.without_vector and not note_fallback(tx, record):
                return False
            tx.add(
                ChunkRow(
                    key=record.key, fact_id=record.fact_id, revision=record.revision, principal=record.principal,
                    fingerprint=record.fingerprint, policy=record.policy, n_tokens=record.n_tokens, state=PENDING,
                    owner=self.owner, created_at=datetime.now(UTC), reach=record.reach,
                    stale=announced_since(
                        tx, record.principal, record.fingerprint, record.policy, record.known_until
                    ),
                )
            )  # fmt: skip
            tx.flush()
            tx.add_all(context_rows(record.key, record.context, kept=True))
            tx.add_all(context_rows(record.key, record.left_out, kept=False))
            return True

    def ready(self, key: str) -> bool:
        """The chunk's file is on disk: it is served from now on, and a stale one of its fact is buried.

        The owner's KV epoch is raised then: no native block made from the old chunk is hit any more.

        Returns:
            False if the chunk was forgotten, or something it carries was deleted or changed, while it was encoded:
            the caller must then ``delete`` the file and call ``discard(key)``.
        """
        with self._transactions.write() as tx:
            done = tx.execute(update(ChunkRow).where(ChunkRow.key == key).values(state=READY, owner=None))
            if not done.rowcount:  # type: ignore[attr-defined]  # a CursorResult for UPDATE
                return False
            row = tx.get_one(ChunkRow, key)
            seen = tx.execute(
                select(ChunkContextRow.fact_id, ChunkContextRow.turn_id, ChunkContextRow.revision).where(
                    ChunkContextRow.chunk_key == key, ChunkContextRow.kept.is_(True)
                )
            )
            context = tuple(ContextItem("", *entry) for entry in seen)
            record = ChunkRecord(key, row.fact_id, row.revision, row.principal, row.fingerprint, row.policy, 0, context)
            if not _is_current(tx, record):
                bury(tx, [key], in_flight=False)
                return False
            tx.execute(delete(EncodeFailureRow).where(_failure_of(row.fact_id, row.fingerprint, row.policy)))
            replace_stale(tx, row)
            return True

    def discard(self, key: str) -> None:
        """An encode came to nothing and its file, if any, was deleted: drop every trace of the key."""
        with self._transactions.write() as tx:
            bury(tx, [key], in_flight=False)
            clear(tx, [key], live=())

    def failed(self, fact_id: str, revision: int, fingerprint: str, policy: str, reason: str, *, park: bool) -> None:
        """Count a failed attempt, and with ``park`` set the fact aside until ``retry_parked`` or an update."""
        with self._transactions.write() as tx:
            if tx.scalar(select(FactRow.revision).where(FactRow.id == fact_id)) != revision:
                return
            row = tx.get(EncodeFailureRow, (fact_id, fingerprint, policy))
            attempts = row.attempts if row is not None and row.revision == revision else 0
            tx.merge(
                EncodeFailureRow(
                    fact_id=fact_id, revision=revision, fingerprint=fingerprint, policy=policy, attempts=attempts + 1,
                    parked=park, reason=reason, at=datetime.now(UTC),
                )
            )  # fmt: skip

    # --- reading ---

    def lookup(self, fact_ids: Sequence[str], fingerprint: str, policy: str) -> dict[str, ChunkRef]:
        """Ready chunks of the current revisions; facts without one are missing from the answer. One query."""
        return {fact: refs[policy] for fact, refs in self.lookup_all(fact_ids, fingerprint, [policy]).items()}

    def lookup_all(
        self, fact_ids: Sequence[str], fingerprint: str, policies: Sequence[str]
    ) -> dict[str, dict[str, ChunkRef]]:
        """``lookup`` for several policies at once: by fact, then by the policy's name. One query."""
        found: dict[str, dict[str, ChunkRef]] = {}
        given = {"fingerprint": fingerprint, "policies": list(policies)}
        with self._transactions.read() as tx:
            connection = tx.connection()  # below the ORM: it stands in the way of every question
            for ids in batches(fact_ids):
                rows = connection.execute(_READY_CHUNKS, {"ids": ids, **given})
                for fact, policy, key, revision, n in rows:
                    found.setdefault(fact, {})[policy] = ChunkRef(key, revision, n)
        return found

    def ready_keys(self, fingerprint: str, policy: str, among: Sequence[str] | None = None) -> set[str]:
        """Keys of ready chunks; with ``among`` only those of it (the way to ask for positional chunks)."""
        query = select(ChunkRow.key).where(
            ChunkRow.fingerprint == fingerprint, ChunkRow.policy == policy, ChunkRow.state == READY
        )
        with self._transactions.read() as tx:
            if among is None:
                return set(tx.scalars(query))
            return {key for keys in batches(among) for key in tx.scalars(query.where(ChunkRow.key.in_(keys)))}

    def waiting(self, fingerprint: str, policy: str, limit: int, scope: Scope | None = None) -> list[str]:
        """Ids of facts that nobody encodes and that are not parked, oldest first."""
        with self._transactions.read() as tx:
            return _queue.waiting(tx, fingerprint, policy, limit, scope)

    def unfinished(self, fingerprint: str, policy: str, scope: Scope | None = None) -> int:
        """How many facts have no ready chunk yet, those being encoded included, parked ones not."""
        with self._transactions.read() as tx:
            return _queue.unfinished(tx, fingerprint, policy, scope)

    def parked(self, fingerprint: str, policy: str, scope: Scope | None = None) -> list[ParkedFact]:
        """Facts set aside after failing, oldest failure first."""
        with self._transactions.read() as tx:
            return _queue.parked(tx, fingerprint, policy, scope)

    def retry_parked(self, fingerprint: str, policy: str, scope: Scope | None = None) -> int:
        """Let parked facts wait again; returns how many."""
        with self._transactions.write() as tx:
            ids = [fact.fact_id for fact in _queue.parked(tx, fingerprint, policy, scope)]
            for some in batches(ids):
                tx.execute(delete(EncodeFailureRow).where(_failure_of(some, fingerprint, policy)))
            return len(ids)

    # --- forgetting ---

    def forget(self, fact_ids: Sequence[str], turn_ids: Sequence[str] = (), tx: Session | None = None) -> Forgotten:
        """Drop the chunks of these facts and of every fact encoded behind one of them or of these turns.

        Call it *after* the facts' and turns' own rows were deleted or changed, in the same transaction ``tx``: their
        files are then tombstoned together with the text, and ``purge`` deletes them after the commit. For an update
        the dependants must go too, they carry the old text.
        """
        with self._transactions.write(tx) as session:
            owners: dict[str, str] = {}
            for column, ids in ((ChunkContextRow.fact_id, fact_ids), (ChunkContextRow.turn_id, turn_ids)):
                for some in batches(ids):
                    seen = select(ChunkContextRow.chunk_key).where(column.in_(some), ChunkContextRow.kept.is_(True))
                    wanted: ColumnElement[bool] = ChunkRow.key.in_(seen)
                    if column is ChunkContextRow.fact_id:
                        wanted = or_(ChunkRow.fact_id.in_(some), wanted)
                    rows = session.execute(select(ChunkRow.key, ChunkRow.fact_id).where(wanted))
                    owners.update((key, fact_id) for key, fact_id in rows)
            bury(session, list(owners))
            mark_cut(session, fact_ids, turn_ids)
            for some in batches(fact_ids):
                session.execute(delete(EncodeFailureRow).where(EncodeFailureRow.fact_id.in_(some)))
            gone = set(fact_ids)
            return Forgotten(tuple(owners), tuple(sorted({f for f in owners.values() if f not in gone})))

    def lost(self, keys: Sequence[str]) -> None:
        """Ready chunks whose files are gone or unreadable: their facts wait to be encoded again."""
        with self._transactions.write() as tx:
            bury(tx, keys)

    def tombstones(self) -> list[str]:
        """Keys whose files have still to be deleted."""
        with self._transactions.read() as tx:
            return list(tx.scalars(select(TombstoneRow.key).order_by(TombstoneRow.at)))

    def claim_tombstones(self) -> list[str]:
        """Take on the deletion of the files that no other live process has taken on; returns their keys."""
        with self._transactions.write() as tx:
            return claim(tx, self.owner)

    def unclaim_tombstones(self, keys: Sequence[str]) -> None:
        """Their files could not be deleted by this process."""
        with self._transactions.write() as tx:
            unclaim(tx, keys)

    def clear_tombstones(self, keys: Sequence[str]) -> None:
        """The files are gone. Keys that a live process may still write stay, for the next purge."""
        with self._transactions.write() as tx:
            clear(tx, keys, live=leases.live_owners(tx))

    # --- processes ---

    def heartbeat(self) -> None:
        """Say that this ledger's process is alive; due more often than ``leases.LEASE``."""
        with self._transactions.write() as tx:
            leases.renew(tx, self.owner)

    def release(self) -> None:
        """Nothing of this ledger is in flight any more: what it left pending may be taken over at once."""
        with self._transactions.write() as tx:
            leases.release(tx, self.owner)

    def abandon(self) -> None:
        """Go on under a new name: what is pending under the old one may still be written until its lease is over."""
        self.owner = leases.new_owner()

    def reset_pending(self, *, own: bool = False) -> int:
        """Bury what dead processes left pending, and chunks of facts that are gone or changed.

        Args:
            own: this ledger's pending chunks too; only while none of them is in flight.

        Returns:
            How many chunks were buried; their facts wait again.
        """
        with self._transactions.write() as tx:
            live = [owner for owner in leases.live_owners(tx) if not (own and owner == self.owner)]
            return _queue.reset_pending(tx, live)


def _failure_of(fact: str | Sequence[str], fingerprint: str, policy: str) -> ColumnElement[bool]:
    ids = [fact] if isinstance(fact, str) else fact
    return (
        EncodeFailureRow.fact_id.in_(ids)
        & (EncodeFailureRow.fingerprint == fingerprint)
        & (EncodeFailureRow.policy == policy)
    )


def _is_current(tx: Session, record: ChunkRecord) -> bool:
    """Whether the fact and all of its context are still what the chunk was, or is to be, encoded from."""
    facts = {(record.fact_id, record.revision)}
    facts |= {(i.fact_id, i.revision) for i in record.context if i.fact_id is not None and i.revision is not None}
    turns = {i.turn_id for i in record.context if i.turn_id is not None}
    rows = select(FactRow.id, FactRow.revision).where(FactRow.id.in_([f for f, _ in facts]))
    if {(i, r) for i, r in tx.execute(rows)} != facts:
        return False
    # A turn whose fact was deleted is emptied, not removed, while another fact names it.
    there = select(TurnRow.id).where(TurnRow.id.in_(turns), TurnRow.text != "")
    return not turns or set(tx.scalars(there)) == turns
