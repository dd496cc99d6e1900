"""``ItemStore``: JSON documents in a memory's own database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import update

from inferscale_memory.changes import changing
from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.facts.session import Transactions
from inferscale_memory.items.filters import check_filter
from inferscale_memory.items.models import FoundItem, Item, Namespace, Put, Query
from inferscale_memory.items.namespaces import Pattern, ScopeOf, check_namespace, listed, scope_of, user_of
from inferscale_memory.items.reading import (
    Ranked,
    asks,
    expired,
    facts_of,
    item_id,
    page,
    rank,
    read_candidates,
    read_items,
    read_namespaces,
    read_scopes,
)
from inferscale_memory.items.removal import erase_items, orphans
from inferscale_memory.items.tables import ItemRow
from inferscale_memory.items.writing import check_key, check_puts, expiry, write
from inferscale_memory.quality import Refresh
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import DEFAULT_TENANT, Scope

if TYPE_CHECKING:
    from inferscale_memory.handle import Handle
    from inferscale_memory.memory import Memory

_log = logging.getLogger(__name__)

SWEEP_EVERY = timedelta(minutes=1)
"""How often using a store sweeps it, at most: erasing rewrites SQLite's file."""
SWEEP_BATCH = 1_000
MAX_K = 10_000


def utc_now() -> datetime:
    """The current time, aware."""
    return datetime.now(UTC)


class ItemStore:
    """Documents under ``(namespace, key)``; what they can be found by are facts of the memory.

    A namespace is somebody's memory: by default its labels joined by ``/`` are a ``user_id``, so that
    ``memory.recall(..., user_id="alice")`` sees what was put in ``("alice",)``. An item and its facts are written in
    one transaction; facts that no item needs any more are deleted with all that ``Memory.delete`` deletes. A fact that
    was remembered before an item said the same, or said in a conversation since, stays when the item goes. Deleting a
    fact through ``Memory`` deletes the items that hold its text.

    Expired items are not seen by any read; they and their facts are erased by ``sweep``, which opening a store does,
    and using it at most once a minute. Safe to use from several threads; processes share the database. Every method
    may raise ``StoreError``.

    Args:
        memory: holds the database; its embedder ranks.
        tenant_id: whose namespaces; those of other tenants are not seen.
        scope: from a namespace to ``{"user_id": ...}`` and the like; None: see above.
        clock: the time, aware.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        tenant_id: str = DEFAULT_TENANT,
        scope: ScopeOf | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.memory = memory
        self.tenant = Scope.of(tenant_id=tenant_id, user_id="anybody").tenant  # checked
        self._scope = scope or user_of
        self._clock = clock
        self._transactions = Transactions(memory.store.engine)
        self._swept: datetime | None = None
        self._sweeping = threading.Lock()
        self._sweep_if_due()

    def scope_of(self, namespace: Namespace) -> Scope:
        """Whose memory a namespace is.

        Raises:
            InvalidInputError: the namespace makes no usable id.
        """
        return scope_of(check_namespace(namespace), self.tenant, self._scope)

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, puts: Sequence[Put]) -> None:
        """Write and delete items, all or none. Of several puts of one item the last counts.

        An item that is written again keeps its place and ``created_at``. A text that cannot be a fact (over-long, say)
        is kept in the value, with a warning, but not found by its meaning.

        Raises:
            InvalidInputError: an item cannot be written; the message names it.
            StoreError: nothing was written; or, if the message says so, all was, but traces of what was deleted could
                not be erased yet.
        """
        written, gone = check_puts(puts, self.tenant, self._scope)
        self._sweep_if_due()
        if written or gone:
            with changing(self.memory) as changes:
                write(changes, written, gone, self._clock())

    def touch(self, items: Iterable[Item]) -> None:
        """Start the time to live of these items anew; those without one are left alone."""
        at = self._clock()
        wanted = {item_id(self.tenant, item.namespace, item.key): item.ttl for item in items if item.ttl is not None}
        if not wanted:
            return
        with self.memory.store.transaction() as tx:
            for found, ttl in wanted.items():
                # Swept meanwhile: nothing to touch. Overwritten meanwhile, with another time to live: not ours.
                tx.execute(
                    update(ItemRow).where(ItemRow.id == found, ItemRow.ttl == ttl).values(expires_at=expiry(ttl, at))
                )

    def sweep(self) -> int:
        """Erase the tenant's expired items and the facts that were made for them; returns how many items."""
        swept = 0
        while True:
            with changing(self.memory) as changes:
                ids = changes.tx.scalars(expired(self.tenant, self._clock()).limit(SWEEP_BATCH)).all()
                changes.delete_many(orphans(changes.tx, erase_items(changes.tx, ids)))
            swept += len(ids)
            if len(ids) < SWEEP_BATCH:
                return swept

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, names: Sequence[tuple[Namespace, str]]) -> list[Item | None]:
        """Items by namespace and key, in this order; None where there is none."""
        ids = [item_id(self.tenant, check_namespace(namespace), check_key(key)) for namespace, key in names]
        self._sweep_if_due()
        with self._transactions.read() as tx:
            found = read_items(tx, ids, self._clock())
        return [found.get(wanted) for wanted in ids]

    def search(self, query: Query) -> list[FoundItem]:
        """Items below a prefix: those that the filter lets through, ranked if there is a question, a page of them.

        Items that cannot be found by meaning follow the ranked ones.

        Raises:
            InvalidInputError: the prefix or the filter is malformed.
            EmbeddingError: the embedder failed on the question.
        """
        ranked = self._ranked(query)
        with self._transactions.read() as tx:
            found = read_items(tx, [hit.item for hit in ranked], self._clock())
        return [FoundItem(found[hit.item], hit.score) for hit in ranked if hit.item in found]

    def namespaces(
        self, patterns: Sequence[Pattern] = (), *, max_depth: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[Namespace]:
        """Namespaces that hold an item and that every pattern names, cut to ``max_depth`` labels, each once, in order.

        Raises:
            InvalidInputError: a pattern is malformed.
        """
        for pattern in patterns:
            check_namespace(pattern.path, what="pattern")
        self._sweep_if_due()
        with self._transactions.read() as tx:
            found = read_namespaces(tx, self.tenant, patterns, self._clock())
        return listed(found, patterns, max_depth, limit, offset)

    def recall(
        self,
        prefix: Namespace,
        question: str,
        k: int = 10,
        *,
        refresh: Refresh | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Handle:
        """The facts of the ``k`` items below a prefix that answer a question best, as one handle.

        ``refresh`` is as in ``Memory.recall``; None: as the memory is set.

        Raises:
            InvalidInputError: items of several scopes lie below the prefix, and a handle names facts of one; or the
                question is blank, or ``k`` or ``refresh`` is out of range.
        """
        prefix = check_namespace(prefix, what="prefix")
        if not isinstance(question, str) or not question.strip():
            raise InvalidInputError(f"the question is blank ({question!r}); pass the user's question.")
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
            raise InvalidInputError(f"k is {k!r}; wanted a number of facts, 1 to {MAX_K:,}.")
        naming = self.memory._naming(refresh, None)
        with self._transactions.read() as tx:
            owners = read_scopes(tx, self.tenant, prefix, self._clock())
        if len(owners) > 1:
            raise InvalidInputError(
                f"below {prefix!r} lie items of {len(owners)} scopes, and a handle holds facts of one. Recall from a "
                "longer prefix, or make these namespaces one scope with scope=."
            )
        owner = owners[0] if owners else self.scope_of(prefix)
        ranked = self._ranked(Query(prefix, question, filter, limit=k))
        best: dict[str, float] = {}
        for hit in ranked:  # two items may say the same
            if hit.fact is not None and hit.score is not None:
                best.setdefault(hit.fact, hit.score)
        kept = self.memory.store.get_many(best)
        found = [ScoredFact(kept[fact], score) for fact, score in best.items() if fact in kept]
        return self.memory._name([hit for hit in found if owner.covers(hit.fact.scope)], owner, naming)

    def _ranked(self, query: Query) -> list[Ranked]:
        check_namespace(query.prefix, what="prefix")
        check_filter(query.filter)
        self._sweep_if_due()
        with self._transactions.read() as tx:
            candidates = read_candidates(tx, self.tenant, query, self._clock())
            facts = facts_of(tx, candidates) if asks(query) else {}
        if not asks(query):
            return [Ranked(item) for item in candidates]
        wanted = {fact for linked in facts.values() for fact in linked}
        # After the candidates were read, so that all of their facts are indexed.
        scores = self.memory.retriever.scores(str(query.question), wanted)
        return page(rank(candidates, facts, scores), query)

    # -- time --------------------------------------------------------------------------------------------------------

    def _sweep_if_due(self) -> None:
        """Sweep now and then, if there is something to sweep; a failure does not keep the caller from its work."""
        self.memory._check_open()
        at = self._clock()
        if self._swept is not None and at - self._swept < SWEEP_EVERY:
            return
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            self._swept = at
            with self._transactions.read() as tx:
                due = tx.scalars(expired(self.tenant, at).limit(1)).first() is not None
            if due:
                self.sweep()
        except StoreError as error:
            _log.warning("expired items are not yet erased: %s", error)
        finally:
            self._sweeping.release()
