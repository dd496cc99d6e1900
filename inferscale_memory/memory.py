"""``Memory``: facts in, handles out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from inferscale_memory.memory_finding import MAX_K
from inferscale_memory.sync_memory import SyncMemory

if TYPE_CHECKING:
    from inferscale_memory.encoding.encoder import FlushReport, Progress
    from inferscale_memory.facts import AddResult, Content, Fact, Page, Revision, Turn
    from inferscale_memory.handle import Explanation, Handle, Handles
    from inferscale_memory.order import Order
    from inferscale_memory.quality import Refresh
    from inferscale_memory.retrieval import Question, ScoredFact

__all__ = ["MAX_K", "Memory"]


class Memory(SyncMemory):
    """Remembers facts, finds them again, and names them by KV handles.

    Without an engine everything works but encoding: facts wait as text and are encoded when an engine comes. Every
    method takes the scope as keywords: ``user_id``, ``agent_id``, ``session_id`` (at least one) and ``tenant_id``.
    Safe to use from several threads; processes may share a home.

    Each method has an async twin with an ``a`` before its name: the same work in a thread, so that the caller's loop
    goes on. Cancelling one does not undo a save or a deletion that has begun: it is done whole or not at all, and
    repeating it is harmless.

    Args:
        engine: encodes facts and resolves handles; its home is the memory's.
        home: folder of the memory; default from the settings (``INFERSCALE_HOME``).
        database_url: SQLAlchemy URL of the facts; default SQLite in the home.
        embedder: an ``Embedder``, a callable ``list[str] -> array``, or a model name; default all-MiniLM-L6-v2.
        index: a ``VectorIndex`` or ``"auto"``, ``"torch"``, ``"faiss"``, ``"faiss-gpu"``, ``"numpy"``.
        policy: what facts are encoded behind, such as ``"nearest:8"``; default from the settings.
        quality: ``"exact"`` (every fact is prefilled: plain prompt injection), ``"balanced"`` (the default: a few
            best-ranked are where that tells, the others injected) or ``"fast"`` (all are injected): policy and refresh
            together, see ``quality.PRESETS``. It goes before ``INFERSCALE_POLICY`` and ``INFERSCALE_REFRESH``;
            ``policy=`` here and ``refresh=`` of a call go before it. Default ``INFERSCALE_QUALITY``, beside which those
            variables count.
        secret: signs handles and salts, 32 bytes or more; default ``INFERSCALE_SECRET``, else the file ``secret`` of
            the home, made on first use.
        extractor: finds facts in chat messages; default each message as it stands.
        encode: ``False`` starts no background encoder (another process has one).

    Raises:
        ConfigError: a setting is wrong, the settings contradict each other, or others can read the secret file.
        StoreError: the database or the KV folder cannot be used.
    """

    async def aadd(
        self,
        items: Content,
        *,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **scope: Any,
    ) -> AddResult:
        """Async twin of ``add``."""
        return await asyncio.to_thread(self.add, items, metadata=metadata, idempotency_key=idempotency_key, **scope)

    async def aupdate(
        self, fact_id: str, *, text: str | None = None, metadata: Mapping[str, Any] | None = None, **scope: Any
    ) -> Fact:
        """Async twin of ``update``."""
        return await asyncio.to_thread(self.update, fact_id, text=text, metadata=metadata, **scope)

    async def adelete(self, fact_id: str, **scope: Any) -> Fact:
        """Async twin of ``delete``."""
        return await asyncio.to_thread(self.delete, fact_id, **scope)

    async def adelete_all(self, **scope: Any) -> int:
        """Async twin of ``delete_all``."""
        return await asyncio.to_thread(self.delete_all, **scope)

    async def asearch(
        self,
        query: str,
        k: int | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        **scope: Any,
    ) -> list[ScoredFact]:
        """Async twin of ``search``; questions that wait at the same time are embedded together."""
        owner, wanted = self._owner(scope), self._wanted(k)
        return await asyncio.to_thread(self._found, await self._asked(query), owner, wanted, threshold, exclude)

    async def arecall(
        self,
        query: str,
        k: int | None = None,
        refresh: Refresh | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        order: Order | None = None,
        **scope: Any,
    ) -> Handle:
        """Async twin of ``recall``; questions that wait at the same time are embedded together."""
        owner, wanted, naming = self._owner(scope), self._wanted(k), self._naming(refresh, order)
        question = await self._asked(query)
        return await asyncio.to_thread(self._recalled, question, owner, wanted, threshold, exclude, naming)

    async def arecall_many(
        self,
        queries: Sequence[str],
        scopes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        k: int | None = None,
        refresh: Refresh | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        order: Order | None = None,
    ) -> Handles:
        """Async twin of ``recall_many``."""
        return await asyncio.to_thread(
            self.recall_many, queries, scopes, k, refresh, threshold=threshold, exclude=exclude, order=order
        )

    async def _asked(self, query: str) -> Question:
        """The question once it is embedded: the loop waits for that, no thread."""
        if self._retriever is None:
            await asyncio.to_thread(getattr, self, "retriever")  # opening it loads the embedding model
        question = self.retriever.ask(query)
        await asyncio.wrap_future(question.future)
        return question

    async def aname(
        self, found: Sequence[ScoredFact], refresh: Refresh | None = None, *, order: Order | None = None, **scope: Any
    ) -> Handle:
        """Async twin of ``name``."""
        return await asyncio.to_thread(self.name, found, refresh, order=order, **scope)

    async def aexplain(self, handle: str, **scope: Any) -> Explanation:
        """Async twin of ``explain``."""
        return await asyncio.to_thread(self.explain, handle, **scope)

    async def aget(self, fact_id: str, **scope: Any) -> Fact:
        """Async twin of ``get``."""
        return await asyncio.to_thread(self.get, fact_id, **scope)

    async def alist(self, *, limit: int = 100, cursor: str | None = None, **scope: Any) -> Page:
        """Async twin of ``list``."""
        return await asyncio.to_thread(self.list, limit=limit, cursor=cursor, **scope)

    async def aturns(self, *, limit: int | None = None, **scope: Any) -> Sequence[Turn]:
        """Async twin of ``turns``."""
        return await asyncio.to_thread(self.turns, limit=limit, **scope)

    async def ahistory(self, fact_id: str, **scope: Any) -> Sequence[Revision]:
        """Async twin of ``history``."""
        return await asyncio.to_thread(self.history, fact_id, **scope)

    async def aflush(
        self, timeout: float | None = None, *, progress: Progress | None = None, **scope: Any
    ) -> FlushReport:
        """Async twin of ``flush``; cancelling it ends the waiting, not the encoding."""
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(self._flush, timeout, progress, scope, given_up)
        finally:
            # Without this the thread would wait on, for ever if need be, and the program could not end.
            given_up.set()

    async def aretry_parked(self, **scope: Any) -> int:
        """Async twin of ``retry_parked``."""
        return await asyncio.to_thread(self.retry_parked, **scope)

    async def aclose(self) -> None:
        """Async twin of ``close``."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
