"""The books about stale chunks: ready and served, but to be encoded again since their fact has other neighbours now.

A chunk says how similar a further fact must be to change its context (``reach``). Every fact, once its vector is
known, is *announced*: the chunks that it reaches are marked stale, in the transaction that notes the announcement. So
what is left to announce and what is left to encode again are both derived from the database, as the queue is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from inferscale_memory.encoding import leases
from inferscale_memory.encoding._burial import bury
from inferscale_memory.encoding._queue import covered, is_parked
from inferscale_memory.encoding.policies import ContextItem
from inferscale_memory.encoding.records import ChunkRecord
from inferscale_memory.encoding.tables import PENDING, READY, AnnouncementRow, ChunkContextRow, ChunkRow
from inferscale_memory.facts.derived import raise_epoch_of
from inferscale_memory.facts.rows import batches
from inferscale_memory.facts.session import Transactions
from inferscale_memory.facts.tables import ChangeRow, FactRow
from inferscale_memory.scope import Scope

Reached = Callable[[Sequence[str], Mapping[str, float]], set[str]]
"""From new facts and, by fact id, the similarity asked for, to the facts that are reached (``FactSource.reached``)."""


class StaleChunks:
    """The part of ``ChunkLedger`` that the announcer and re-encoding use."""

    _transactions: Transactions

    def stale(self, fingerprint: str, policy: str, limit: int, scope: Scope | None = None) -> list[str]:
        """Ids of facts whose ready chunk is stale, that nobody encodes and that are not parked, oldest first."""
        with self._transactions.read() as tx:
            other = aliased(ChunkRow)
            at_work = exists().where(
                other.fact_id == FactRow.id, other.fingerprint == fingerprint, other.policy == policy,
                other.state == PENDING, other.owner.in_(leases.live_owners(tx)),
            )  # fmt: skip
            query = select(FactRow.id).join(ChunkRow, ChunkRow.fact_id == FactRow.id).where(~at_work)
            query = query.where(*_stale(fingerprint, policy), *covered(scope)).order_by(FactRow.seq).limit(limit)
            return list(tx.scalars(query))

    def count_stale(self, fingerprint: str, policy: str, scope: Scope | None = None) -> int:
        """How many facts have a stale chunk, those being encoded again included, parked ones not."""
        query = select(func.count(FactRow.id)).join(ChunkRow, ChunkRow.fact_id == FactRow.id)
        with self._transactions.read() as tx:
            return tx.scalar(query.where(*_stale(fingerprint, policy), *covered(scope))) or 0

    def confirm(self, record: ChunkRecord) -> bool:
        """The chunk of this key is ready and what would be encoded now: it is not stale.

        Returns:
            False if there is no such chunk, so that it is to be encoded.
        """
        with self._transactions.write() as tx:
            row = tx.get(ChunkRow, record.key)
            if row is None or row.state != READY:
                return False
            row.stale = announced_since(tx, row.principal, row.fingerprint, row.policy, record.known_until)
            row.reach = record.reach
            # The same lines fit, but what did not may be something else.
            left_out = ChunkContextRow.chunk_key == record.key, ChunkContextRow.kept.is_(False)
            tx.execute(delete(ChunkContextRow).where(*left_out))
            tx.add_all(context_rows(record.key, record.left_out, kept=False))
            if record.without_vector:
                note_fallback(tx, record)
            return True

    # --- announcing ---

    def unannounced(self, fingerprint: str, policy: str, limit: int) -> list[str]:
        """Ids of facts of which the others have not been told at their revision, oldest first."""
        query = select(FactRow.id).where(_unannounced(fingerprint, policy)).order_by(FactRow.seq).limit(limit)
        with self._transactions.read() as tx:
            return list(tx.scalars(query))

    def count_unannounced(self, fingerprint: str, policy: str, scope: Scope | None = None) -> int:
        """How many these are."""
        query = select(func.count(FactRow.id)).where(_unannounced(fingerprint, policy), *covered(scope))
        with self._transactions.read() as tx:
            return tx.scalar(query) or 0

    def without_vector(self, fingerprint: str, policy: str) -> list[str]:
        """Ids of facts that had no vector when they were to be announced, oldest first."""
        query = (
            select(FactRow.id)
            .join(AnnouncementRow, AnnouncementRow.fact_id == FactRow.id)
            .where(*_announcement(fingerprint, policy), AnnouncementRow.embedded.is_(False))
        )
        with self._transactions.read() as tx:
            return list(tx.scalars(query.order_by(FactRow.seq)))

    def announce(
        self, fingerprint: str, policy: str, fact_ids: Sequence[str], embedded: Mapping[str, int], reached: Reached
    ) -> int:
        """Tell the others of facts: chunks that one of them reaches become stale.

        Args:
            fingerprint: of the model whose chunks are meant.
            policy: name of theirs.
            fact_ids: the facts; those gone meanwhile are ignored.
            embedded: revision of the vector of each that has one. Those without reach nobody, and are announced once
                they have one (``without_vector``); their own chunks become stale then.
            reached: tells whom they reach.

        Returns:
            How many chunks became stale.
        """
        new = list(embedded)
        with self._transactions.read() as tx:
            before = _reaches(tx, new, fingerprint, policy)
        stale = reached(new, before) if before else set()
        with self._transactions.write() as tx:
            # Chunks that were begun meanwhile did not know of these facts; later ones do, for `announced_since`.
            late = {f: r for f, r in _reaches(tx, new, fingerprint, policy).items() if before.get(f) != r}
            stale |= reached(new, late) if late else set()
            stale |= _late(tx, new, fingerprint, policy)
            marked = 0
            for some in batches(stale):
                done = tx.execute(
                    update(ChunkRow)
                    .where(ChunkRow.fact_id.in_(some), ChunkRow.stale.is_(False), *_of(fingerprint, policy))
                    .values(stale=True)
                )
                marked += done.rowcount  # type: ignore[attr-defined]  # a CursorResult for UPDATE
            _note_announced(tx, fingerprint, policy, fact_ids, embedded)
            return marked


def announced_since(tx: Session, principal: str, fingerprint: str, policy: str, known_until: int | None) -> bool:
    """Whether a context chosen with the changes up to ``known_until`` missed a fact that was announced already."""
    if known_until is None:
        return False
    query = (
        select(ChangeRow.seq)
        .join(AnnouncementRow, AnnouncementRow.fact_id == ChangeRow.fact_id)
        .where(ChangeRow.seq > known_until, ChangeRow.principal == principal)
        .where(*_of_announcement(fingerprint, policy), AnnouncementRow.embedded.is_(True))
    )
    return tx.scalar(query.limit(1)) is not None


def mark_cut(tx: Session, fact_ids: Sequence[str], turn_ids: Sequence[str]) -> None:
    """Chunks for whose context one of these was chosen but did not fit are stale: in its place others may fit."""
    for column, ids in ((ChunkContextRow.fact_id, fact_ids), (ChunkContextRow.turn_id, turn_ids)):
        for some in batches(ids):
            cut = select(ChunkContextRow.chunk_key).where(column.in_(some), ChunkContextRow.kept.is_(False))
            tx.execute(
                update(ChunkRow).where(ChunkRow.key.in_(cut)).values(stale=True),
                execution_options={"synchronize_session": False},
            )
    for some in batches(fact_ids):
        tx.execute(delete(AnnouncementRow).where(AnnouncementRow.fact_id.in_(some)))


def replace_stale(tx: Session, row: ChunkRow) -> None:
    """Bury the stale chunks in whose place ``row`` is served."""
    old = tx.scalars(
        select(ChunkRow.key).where(
            ChunkRow.fact_id == row.fact_id, ChunkRow.fingerprint == row.fingerprint, ChunkRow.policy == row.policy,
            ChunkRow.key != row.key, ChunkRow.state == READY, ChunkRow.stale.is_(True),
        )
    ).all()  # fmt: skip
    if old:
        bury(tx, old)
        raise_epoch_of(tx, row.principal)


def note_fallback(tx: Session, record: ChunkRecord) -> bool:
    """Note that a fact had no vector, so that it is announced once it has one, whatever was announced of it before.

    Returns:
        False if its turn to be embedded has not come yet: it need not do with another context.
    """
    row = tx.get(AnnouncementRow, (record.fact_id, record.fingerprint, record.policy))
    if row is None or row.revision != record.revision:
        return False
    row.embedded = False
    return True


def context_rows(key: str, items: Iterable[ContextItem], *, kept: bool) -> list[ChunkContextRow]:
    """What a chunk was encoded behind, or what did not fit there."""
    return [
        ChunkContextRow(chunk_key=key, fact_id=i.fact_id, revision=i.revision, turn_id=i.turn_id, kept=kept)
        for i in items
    ]


def _of(fingerprint: str, policy: str) -> tuple[ColumnElement[bool], ...]:
    return ChunkRow.fingerprint == fingerprint, ChunkRow.policy == policy


def _stale(fingerprint: str, policy: str) -> tuple[ColumnElement[bool], ...]:
    current = and_(ChunkRow.state == READY, ChunkRow.stale.is_(True), ChunkRow.revision == FactRow.revision)
    return (*_of(fingerprint, policy), current, ~is_parked(fingerprint, policy))


def _of_announcement(fingerprint: str, policy: str) -> tuple[ColumnElement[bool], ...]:
    return AnnouncementRow.fingerprint == fingerprint, AnnouncementRow.policy == policy


def _announcement(fingerprint: str, policy: str) -> tuple[ColumnElement[bool], ...]:
    """The announcement of a fact at its revision."""
    return (
        AnnouncementRow.fact_id == FactRow.id,
        AnnouncementRow.revision == FactRow.revision,
        *_of_announcement(fingerprint, policy),
    )


def _unannounced(fingerprint: str, policy: str) -> ColumnElement[bool]:
    return ~exists().where(*_announcement(fingerprint, policy))


def _reaches(tx: Session, fact_ids: Sequence[str], fingerprint: str, policy: str) -> dict[str, float]:
    """By fact id, what similarity the chunks of these facts' owners ask for; those that none changes are left out."""
    owners = {p for ids in batches(fact_ids) for p in tx.scalars(select(FactRow.principal).where(FactRow.id.in_(ids)))}
    found: dict[str, float] = {}
    for some in batches(owners):
        query = select(ChunkRow.fact_id, ChunkRow.reach).where(ChunkRow.principal.in_(some), *_of(fingerprint, policy))
        for fact_id, reach in tx.execute(query):
            if reach is not None:
                found[fact_id] = min(reach, found.get(fact_id, reach))
    return found


def _late(tx: Session, fact_ids: Sequence[str], fingerprint: str, policy: str) -> set[str]:
    """Which of these have a vector only now: their own chunks were encoded behind other facts for want of one."""
    query = select(AnnouncementRow.fact_id).where(AnnouncementRow.embedded.is_(False))
    query = query.where(*_of_announcement(fingerprint, policy))
    return {f for ids in batches(fact_ids) for f in tx.scalars(query.where(AnnouncementRow.fact_id.in_(ids)))}


def _note_announced(
    tx: Session, fingerprint: str, policy: str, fact_ids: Sequence[str], embedded: Mapping[str, int]
) -> None:
    for some in batches(fact_ids):
        tx.execute(
            delete(AnnouncementRow).where(AnnouncementRow.fact_id.in_(some), *_of_announcement(fingerprint, policy))
        )
        current = tx.execute(select(FactRow.id, FactRow.revision).where(FactRow.id.in_(some))).all()
        tx.add_all(
            AnnouncementRow(
                fact_id=fact_id, fingerprint=fingerprint, policy=policy, revision=revision,
                embedded=embedded.get(fact_id) == revision,
            )
            for fact_id, revision in current
        )  # fmt: skip
    tx.flush()
