"""Keeps a vector index in step with the fact store's change log, whichever process writes to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.retrieval.base import Embedder, EmbeddingError, Hit, VectorIndex
from inferscale_memory.retrieval.batching import embed_each
from inferscale_memory.retrieval.catalog import Catalog, Failure
from inferscale_memory.retrieval.vectors import unit_rows
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact
    from inferscale_memory.facts.store import FactStore

_log = logging.getLogger(__name__)

CHANGE_PAGE = 256
"""Changes that ``sync`` takes from the store at a time; the index is up to date after each page."""

EMBED_BATCH = 64
"""Texts that one call of the embedder gets."""


class IndexKeeper:
    """Owns an index: the only one that writes to it, and the one who knows which revision each vector stands for.

    All methods may be called from several threads.

    Args:
        store: the facts, their change log, and the vectors kept for ``embedder.id``.
        embedder: embeds the facts that have no stored vector.
        index: an empty index.
        clock: seconds, never going back; when parked facts are tried again.

    Raises:
        InvalidInputError: the index is not empty.
    """

    def __init__(
        self,
        store: FactStore,
        embedder: Embedder,
        index: VectorIndex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(index):
            raise InvalidInputError(f"the index already holds {len(index)} vectors; give the retriever an empty one.")
        self._store = store
        self._embedder = embedder
        self._index = index
        self._clock = clock
        self._sync_lock = RLock()  # one catch-up at a time; held while embedding
        self._lock = RLock()  # guards what follows and every use of the index; held briefly
        self._catalog = Catalog()
        self._failures: dict[str, Failure] = {}
        self._recheck: set[str] = set()
        self._cursor = 0

    @property
    def failures(self) -> dict[str, Failure]:
        """Facts that could not be embedded, by id: not found by search, tried again by later calls of ``sync``."""
        with self._lock:
            return dict(self._failures)

    def sync(self) -> int:
        """Catch up with the store: facts added, updated and deleted by any process since the last call.

        Facts without a stored vector are embedded in batches. One that fails is parked (see ``failures``) and stops
        no other. A call that finds another in progress waits for it.

        Returns:
            How many facts were looked at.

        Raises:
            StoreError, MissingExtraError, ModelError: the store, or the embedder as a whole, cannot be used. What was
                caught up so far stays, and the next call resumes.
        """
        seen = 0
        while looked_at := self.step():
            seen += looked_at
        return seen

    def step(self) -> int:
        """One page of ``sync``: at most ``CHANGE_PAGE`` changes; 0 once there is nothing left to catch up with."""
        if not self._behind():
            return 0
        with self._sync_lock:
            changes = self._store.changes_since(self._cursor, CHANGE_PAGE)
            with self._lock:
                rechecks, self._recheck = self._recheck, set()
                ids = {change.fact_id for change in changes} | rechecks | self._due()
            if not ids:
                return 0
            try:
                self._refresh(ids)
            except BaseException:
                with self._lock:
                    self._recheck |= rechecks
                raise
            if changes:
                self._cursor = changes[-1].seq
            return len(ids)

    @property
    def cursor(self) -> int:
        """Sequence number of the last change of the store that the index knows."""
        return self._cursor

    def forget(self, fact_ids: Collection[str]) -> None:
        """Take facts that were deleted from the store out of the index, now instead of at the next ``sync``.

        Unknown ids are ignored. A fact that the store still has comes back at the next ``sync``.
        """
        with self._lock:
            self._drop(fact_ids)
            self._recheck.update(fact_ids)  # a sync in progress may have read them before they were deleted

    def search(self, vector: np.ndarray, k: int, scope: Scope) -> list[Hit]:
        """The ``k`` best indexed facts that ``scope`` covers (see ``VectorIndex.search``)."""
        with self._lock:
            return self._index.search(vector, k, scope.principal, self._catalog.allowed(scope))

    def search_many(self, vectors: np.ndarray, k: int, scopes: Sequence[Scope]) -> list[list[Hit]]:
        """The ``k`` best for each row of ``vectors`` (``[n, dim]``) in its own scope, in one go."""
        with self._lock:
            allowed = [self._catalog.allowed(scope) for scope in scopes]
            return self._index.search_many(vectors, k, [scope.principal for scope in scopes], allowed)

    def companions(self, fact_id: str, revision: int, scope: Scope, k: int) -> list[Hit] | None:
        """The ``k`` indexed facts most like a fact among its companions (see ``Scope.accompanies``), itself included.

        None where the fact is not indexed at that revision.
        """
        with self._lock:
            if self._catalog.revision(fact_id) != revision:
                return None
            [vector] = self._index.vectors([fact_id])
            return self._index.search(vector, k, scope.principal, self._catalog.companions(scope))

    def revisions(self, fact_ids: Iterable[str]) -> dict[str, int]:
        """Indexed revision of those of ``fact_ids`` that are indexed."""
        with self._lock:
            return {id: revision for id in fact_ids if (revision := self._catalog.revision(id)) is not None}

    def scopes(self, fact_ids: Iterable[str]) -> dict[str, Scope]:
        """Scope of those of ``fact_ids`` that are indexed."""
        with self._lock:
            return {id: scope for id in fact_ids if (scope := self._catalog.scope(id)) is not None}

    def snapshot(self, fact_ids: Sequence[str]) -> dict[str, tuple[int, np.ndarray]]:
        """Indexed revision and vector (``[dim]`` float32, length 1) of those of ``fact_ids`` that are indexed."""
        with self._lock:
            held = self.revisions(fact_ids)
            vectors = self._index.vectors(list(held))
        return {id: (revision, vector) for (id, revision), vector in zip(held.items(), vectors, strict=True)}

    def check_integrity(self) -> None:
        """Verify the index, and that it holds exactly the facts on record.

        Raises:
            StoreError: it does not.
        """
        with self._lock:
            self._index.check_integrity()
            missing = [fact_id for fact_id in self._catalog.ids() if fact_id not in self._index]
            if missing or len(self._index) != len(self._catalog):
                raise StoreError(
                    f"the index holds {len(self._index)} vectors for {len(self._catalog)} facts on record, "
                    f"{len(missing)} of them without one."
                )

    def _behind(self) -> bool:
        with self._lock:
            if self._recheck or self._due():
                return True
        return self._store.last_change() > self._cursor

    def _due(self) -> set[str]:
        now = self._clock()
        return {fact_id for fact_id, failure in self._failures.items() if failure.retry_at <= now}

    def _refresh(self, ids: Collection[str]) -> None:
        """Make index, catalog and failures agree with what the store says about ``ids`` now."""
        facts = self._store.get_many(sorted(ids))
        with self._lock:
            self._drop(fact_id for fact_id in ids if fact_id not in facts)
            due = self._due()
            wanted = [
                fact
                for fact in facts.values()
                if self._catalog.revision(fact.id) != fact.revision
                and (self._failed_revision(fact.id) != fact.revision or fact.id in due)
            ]
            # The old text is no longer true: it must not be found while the new one waits to be embedded.
            self._drop_indexed(fact.id for fact in wanted)
        if not wanted:
            return
        vectors = self._stored_vectors(wanted)
        missing = [fact for fact in wanted if fact.id not in vectors]
        failed: dict[str, EmbeddingError] = {}
        results = embed_each(self._embedder, [fact.text for fact in missing], EMBED_BATCH)
        for fact, result in zip(missing, results, strict=True):
            if isinstance(result, EmbeddingError):
                failed[fact.id] = result
            else:
                vectors[fact.id] = result
        done = [fact for fact in missing if fact.id in vectors]
        if done:
            rows = [(fact.id, fact.revision, vectors[fact.id].astype("<f4").tobytes()) for fact in done]
            try:
                self._store.put_vectors(self._embedder.id, rows)
            except StoreError as error:  # full or read-only: search goes on, and the next process embeds them again
                _log.warning("the vectors of %d facts could not be kept: %s", len(rows), error)
        self._apply(wanted, vectors, failed)

    def _apply(self, facts: Iterable[Fact], vectors: dict[str, np.ndarray], failed: dict[str, EmbeddingError]) -> None:
        now = self._clock()
        by_principal: dict[str, list[Fact]] = {}
        with self._lock:
            for fact in facts:
                if fact.id in self._recheck:
                    continue  # forgotten while it was embedded: the next round of sync asks the store again
                if fact.id in failed:
                    previous = self._failures.get(fact.id)
                    reason = str(failed[fact.id])
                    self._failures[fact.id] = Failure.after(previous, fact.id, fact.revision, reason, now)
                    continue
                self._failures.pop(fact.id, None)
                by_principal.setdefault(fact.scope.principal, []).append(fact)
            for principal, members in by_principal.items():
                ids = [fact.id for fact in members]
                self._index.upsert(ids, np.stack([vectors[fact_id] for fact_id in ids]), principal)
                for fact in members:
                    self._catalog.put(fact.id, fact.revision, fact.scope)

    def _stored_vectors(self, facts: Sequence[Fact]) -> dict[str, np.ndarray]:
        """Vectors that the store keeps for the present revisions; those it lacks, or that are damaged, are absent."""
        stored = self._store.get_vectors(self._embedder.id, [fact.id for fact in facts])
        usable: dict[str, np.ndarray] = {}
        for fact in facts:
            revision, raw = stored.get(fact.id, (None, b""))
            if revision != fact.revision or len(raw) != 4 * self._embedder.dim:
                continue
            try:
                usable[fact.id] = unit_rows(np.frombuffer(raw, dtype="<f4")[None], [fact.id], self._embedder.dim)[0]
            except InvalidInputError:  # damaged on disk: it is derived, so embed again
                continue
        return usable

    def _failed_revision(self, fact_id: str) -> int | None:
        failure = self._failures.get(fact_id)
        return failure.revision if failure else None

    def _drop(self, fact_ids: Iterable[str]) -> None:
        ids = list(fact_ids)
        self._drop_indexed(ids)
        for fact_id in ids:
            self._failures.pop(fact_id, None)

    def _drop_indexed(self, fact_ids: Iterable[str]) -> None:
        ids = list(fact_ids)
        self._index.delete(ids)
        self._catalog.drop(ids)
