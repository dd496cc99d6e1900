"""The verbs of a memory: save, change, forget, read; finding and waiting are in the classes below it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferscale_memory.changes import changing
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import EngineError, FactNotFoundError, StoreError
from inferscale_memory.facts import AddResult, Fact, Page, Revision, Turn, check_metadata, coerce_items
from inferscale_memory.handles import strip_handles
from inferscale_memory.memory_finding import MemoryFinding

if TYPE_CHECKING:
    from inferscale_memory.facts import Content

logger = logging.getLogger(__name__)


class SyncMemory(MemoryFinding):
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
            gone = changes.delete_all(owner)
        self._placed.reset(owner)
        return len(gone)

    def _after_forgetting(self, fact_ids: Sequence[str], what: str) -> None:
        """Erase, after the commit, what can no longer be served: the text is gone and the epoch has moved.

        Each step is done even if one before it failed; what failed is noted in the database and done later.
        """
        self.store.forget_read(fact_ids)
        self._placed.forget(fact_ids)
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
