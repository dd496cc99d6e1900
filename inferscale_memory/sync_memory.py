"""The verbs of a memory: save, change, forget, find, name, explain, wait."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferscale_memory import metrics
from inferscale_memory.changes import changing
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import EngineError, FactNotFoundError, InvalidInputError, StoreError
from inferscale_memory.facts import AddResult, Fact, Page, Revision, Turn, check_metadata, coerce_items
from inferscale_memory.handle import ExplainedFact, Explanation, Handle
from inferscale_memory.handles import strip_handles
from inferscale_memory.memory_encoding import MemoryEncoding
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.facts import Content

logger = logging.getLogger(__name__)

MAX_K = 10_000
REMEMBERED_SCORES = 1_000


class SyncMemory(MemoryEncoding):
    """The methods of ``Memory``, whose docstring holds what they have in common.

    Each takes the scope as keywords: ``user_id``, ``agent_id``, ``session_id``, ``tenant_id``. Each may raise
    ``ScopeError`` (no owner, or a blank id), ``TypeError`` (another keyword) and ``StoreError`` (the database cannot
    be read or written, or the memory is closed).
    """

    # -- saving --------------------------------------------------------------------------------------------------------

    def add(
        self,
        items: Content,
        *,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **scope: Any,
    ) -> AddResult:
        """Remember a text, a list of texts, or chat messages; returns once the text is durable.

        Good items are kept, bad ones are named in ``errors``. What the scope knows already is not saved twice. KV
        handles are taken out of the text.

        Args:
            items: texts are facts as they stand; of messages each becomes a turn and a fact with its speaker.
            metadata: kept with every fact; it cannot change whose they are.
            idempotency_key: names this call, so that a retry saves nothing new.
            scope: whose memory.

        Raises:
            InvalidInputError: the call itself is wrong: neither text nor messages, an empty list, unusable metadata,
                a blank key.
        """
        owner = self._owner(scope)
        checked = None if metadata is None else check_metadata(metadata)
        coerced = coerce_items(items, extractor=self._extractor, metadata=checked, max_chars=self.store.max_fact_chars)
        result = self.store.add(coerced.facts, owner, turns=coerced.turns, idempotency_key=idempotency_key)
        self._notify()
        return result

    def update(
        self, fact_id: str, *, text: str | None = None, metadata: Mapping[str, Any] | None = None, **scope: Any
    ) -> Fact:
        """Change a fact; the old text stays in its history. Handles that name it resolve to the new one.

        Raises:
            FactNotFoundError: no such fact in this scope.
            InvalidInputError: unusable text or metadata, or another fact of the scope already says this.
        """
        owner = self._owner(scope)
        if isinstance(text, str):
            text = strip_handles(text)
        with self.store.transaction() as tx:
            before = self.store.get(fact_id, owner, tx=tx)
            fact = self.store.update(fact_id, owner, text=text, metadata=metadata, tx=tx)
            changed = before is not None and fact.revision != before.revision
            if changed:
                self.ledger.forget([fact.id], tx=tx)
        if changed:
            self._after_forgetting([fact.id], "changed")
        return fact

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def delete(self, fact_id: str, **scope: Any) -> Fact:
        """Remove a fact: text, history, vector, KV on every tier; facts encoded behind it are encoded again.

        Items that hold its text (see ``items.ItemStore``) go with it.

        Raises:
            FactNotFoundError: no such fact in this scope.
            StoreError: nothing was deleted; or, if the message says so, it was and no question is answered from it any
                more, but files with traces of it could not be erased yet.
        """
        owner = self._owner(scope)
        with changing(self) as changes:
            return changes.delete(fact_id, owner)

    def delete_all(self, **scope: Any) -> int:
        """Remove every fact, turn and item of the scope; returns how many facts. Raises as ``delete`` does."""
        owner = self._owner(scope)
        with changing(self) as changes:
            return len(changes.delete_all(owner))

    def _after_forgetting(self, fact_ids: Sequence[str], what: str) -> None:
        """Erase, after the commit, what can no longer be served: the text is gone and the epoch has moved.

        Each step is done even if one before it failed; what failed is noted in the database and done later.
        """
        self.store.forget_read(fact_ids)
        if self._retriever is not None:
            self._retriever.forget(fact_ids)
        if self._resolver is not None:
            self._resolver.forget(fact_ids)
        failures: list[StoreError] = []
        # Chunks made for one prompt (policy `prefix`) have no file: without the announcement they would stay in memory.
        for erase in (self.store.scrub, lambda: purge(self.ledger, self.chunks), self.chunks.announce):
            try:
                erase()
            except StoreError as error:
                failures.append(error)
        if self.engine is not None:
            try:
                self.engine.follow_deletions()
            except EngineError as error:  # a dead engine holds nothing and answers nothing
                logger.warning("the engine could not be told of a deletion: %s", error)
        self._notify()
        if failures:
            raise StoreError(
                f"{what}, and no question is answered from it any more, but traces of it are still on disk: "
                f"{failures[0]} They are erased by the next deletion or opening that can."
            ) from failures[0]

    # -- finding -------------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        **scope: Any,
    ) -> list[ScoredFact]:
        """Find the ``k`` facts that answer a question, best first; ``k`` come if ``k`` exist beside ``exclude``.

        Raises:
            InvalidInputError: the query is blank, or ``k`` is not 1 to 10,000.
            EmbeddingError: the embedder failed.
        """
        owner = self._owner(scope)
        wanted = self.settings.k if k is None else k
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= MAX_K:
            raise InvalidInputError(f"k is {wanted!r}; wanted the number of facts, 1 to {MAX_K:,}.")
        with metrics.SEARCH_SECONDS.time():
            return self.retriever.search(query, owner, wanted, threshold=threshold, exclude=exclude)

    def recall(
        self,
        query: str,
        k: int | None = None,
        refresh: int | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        **scope: Any,
    ) -> Handle:
        """Find facts and name them by a handle, to be put into a system message.

        Args:
            query: the question.
            k: how many facts, default from the settings (10).
            refresh: how many of the best-ranked are prefilled as text behind the injected ones; ``refresh=k`` or more
                is plain prompt injection, with no token injected.
            threshold: leave out facts of a lower cosine.
            exclude: ids of facts that take no slot, such as those of turns that the prompt holds as text.
            scope: whose memory.

        Raises:
            InvalidInputError: as ``search``, or ``refresh`` is negative.
        """
        again = self._refreshed(refresh)
        with metrics.RECALL_SECONDS.time():
            found = self.search(query, k, threshold=threshold, exclude=exclude, **scope)
            return self._name(found, self._owner(scope), again)

    def name(self, found: Sequence[ScoredFact], refresh: int | None = None, **scope: Any) -> Handle:
        """A handle for facts that ``search`` or ``recall`` has found in this scope, best first; or for some of them.

        Facts of another scope are named in vain: the handle does not resolve to them.

        Raises:
            InvalidInputError: ``refresh`` is negative.
        """
        return self._name(found, self._owner(scope), self._refreshed(refresh))

    def _refreshed(self, given: int | None) -> int:
        refresh = self.settings.refresh if given is None else given
        if not isinstance(refresh, int) or isinstance(refresh, bool) or refresh < 0:
            raise InvalidInputError(f"refresh is {refresh!r}; wanted a number of facts, 0 to k.")
        return refresh

    def _name(self, found: Sequence[ScoredFact], owner: Scope, refresh: int) -> Handle:
        """A handle for facts that were found in a scope, best first; ``recall`` finds and names."""
        placed = [(scored.fact.id, scored.fact.revision) for scored in reversed(found)]
        token = self.handles.mint(owner, placed, min(refresh, len(placed)))
        with self._scores_lock:
            self._scores[token] = {scored.fact.id: scored.score for scored in found}
            self._scores.move_to_end(token)
            while len(self._scores) > REMEMBERED_SCORES:
                self._scores.popitem(last=False)
        return Handle(token, list(found))

    def explain(self, handle: str, **scope: Any) -> Explanation:
        """What a handle stands for: facts, scores, sources, and what of it is encoded and on disk.

        Raises:
            HandleError: it does not open (in this scope, if one is given).
        """
        self._check_open()
        record = self.handles.open(str(handle), self._owner(scope) if scope else None)
        stored = self.store.get_many(fact_id for fact_id, _ in record.facts)
        found = {fact_id: fact for fact_id, fact in stored.items() if record.scope.covers(fact.scope)}
        refs = {}
        if self.engine is not None:
            refs = self.ledger.lookup(list(found), self.engine.fingerprint, self.policy.name)
        scores = self._scores.get(str(handle), {})
        first_refreshed = len(record.facts) - record.refresh
        facts = tuple(
            ExplainedFact(
                fact=found[fact_id],
                score=scores.get(fact_id),
                encoded=fact_id in refs,
                resident=fact_id in refs and self.chunks.exists(refs[fact_id].key),
                refreshed=at >= first_refreshed,
            )
            for at, (fact_id, _) in enumerate(record.facts)
            if fact_id in found
        )
        deleted = record.forgotten + len(record.facts) - len(facts)
        return Explanation(record.scope, record.expires_at, record.refresh, facts, deleted)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, fact_id: str, **scope: Any) -> Fact:
        """One fact.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        owner = self._owner(scope)
        fact = self.store.get(fact_id, owner)
        if fact is None:
            raise FactNotFoundError(f"no fact {fact_id!r} for {owner}.")
        return fact

    def list(self, *, limit: int = 100, cursor: str | None = None, **scope: Any) -> Page:
        """Facts of the scope, oldest first, a page of 1 to 1,000 at a time.

        Raises:
            InvalidInputError: a limit out of range, or a cursor that no page gave.
        """
        return self.store.list(self._owner(scope), limit=limit, cursor=cursor)

    def turns(self, *, limit: int | None = None, **scope: Any) -> Sequence[Turn]:
        """The newest turns of a conversation, oldest first; at most ``limit``, or all.

        With a ``session_id`` those of that session only, without one those of every session of the scope: the turns
        that ``delete_all`` of the same scope would remove. What was saved as text was not said in a conversation.

        Raises:
            InvalidInputError: ``limit`` is not 1 or more.
        """
        return self.store.turns(self._owner(scope), limit=limit)

    def history(self, fact_id: str, **scope: Any) -> Sequence[Revision]:
        """What became of a fact, oldest first.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        return self.store.history(fact_id, self._owner(scope))
