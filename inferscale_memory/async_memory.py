"""Async twins of ``Memory``'s methods: the same work in a thread, so that the caller's loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from inferscale_memory.encoding.encoder import FlushReport, Progress
    from inferscale_memory.facts import AddResult, Content, Fact, Page, Revision
    from inferscale_memory.handle import Explanation, Handle
    from inferscale_memory.memory import Memory
    from inferscale_memory.retrieval import ScoredFact


class AsyncMemory:
    """Mixed into ``Memory``; each method does what the one without the ``a`` says."""

    async def aadd(
        self: Memory,  # type: ignore[misc]
        items: Content,
        *,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **scope: Any,
    ) -> AddResult:
        """Async twin of ``add``."""
        return await asyncio.to_thread(self.add, items, metadata=metadata, idempotency_key=idempotency_key, **scope)

    async def aupdate(
        self: Memory,  # type: ignore[misc]
        fact_id: str,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **scope: Any,
    ) -> Fact:
        """Async twin of ``update``."""
        return await asyncio.to_thread(self.update, fact_id, text=text, metadata=metadata, **scope)

    async def adelete(self: Memory, fact_id: str, **scope: Any) -> Fact:  # type: ignore[misc]
        """Async twin of ``delete``."""
        return await asyncio.to_thread(self.delete, fact_id, **scope)

    async def adelete_all(self: Memory, **scope: Any) -> int:  # type: ignore[misc]
        """Async twin of ``delete_all``."""
        return await asyncio.to_thread(self.delete_all, **scope)

    async def asearch(
        self: Memory,  # type: ignore[misc]
        query: str,
        k: int | None = None,
        *,
        threshold: float | None = None,
        **scope: Any,
    ) -> list[ScoredFact]:
        """Async twin of ``search``."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold, **scope)

    async def arecall(
        self: Memory,  # type: ignore[misc]
        query: str,
        k: int | None = None,
        refresh: int | None = None,
        *,
        threshold: float | None = None,
        **scope: Any,
    ) -> Handle:
        """Async twin of ``recall``."""
        return await asyncio.to_thread(self.recall, query, k, refresh, threshold=threshold, **scope)

    async def aexplain(self: Memory, handle: str, **scope: Any) -> Explanation:  # type: ignore[misc]
        """Async twin of ``explain``."""
        return await asyncio.to_thread(self.explain, handle, **scope)

    async def aget(self: Memory, fact_id: str, **scope: Any) -> Fact:  # type: ignore[misc]
        """Async twin of ``get``."""
        return await asyncio.to_thread(self.get, fact_id, **scope)

    async def alist(
        self: Memory,  # type: ignore[misc]
        *,
        limit: int = 100,
        cursor: str | None = None,
        **scope: Any,
    ) -> Page:
        """Async twin of ``list``."""
        return await asyncio.to_thread(self.list, limit=limit, cursor=cursor, **scope)

    async def ahistory(self: Memory, fact_id: str, **scope: Any) -> Sequence[Revision]:  # type: ignore[misc]
        """Async twin of ``history``."""
        return await asyncio.to_thread(self.history, fact_id, **scope)

    async def aflush(
        self: Memory,  # type: ignore[misc]
        timeout: float | None = None,
        *,
        progress: Progress | None = None,
        **scope: Any,
    ) -> FlushReport:
        """Async twin of ``flush``."""
        return await asyncio.to_thread(self.flush, timeout, progress=progress, **scope)

    async def aclose(self: Memory) -> None:  # type: ignore[misc]
        """Async twin of ``close``."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: Memory, *_: object) -> None:  # type: ignore[misc]
        await self.aclose()
