"""Facts as LangChain documents, each with its text and with its KV handle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config
from pydantic import ConfigDict, Field

from inferscale_memory import Memory
from inferscale_memory.quality import Refresh
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import Scope
from langchain_inferscale.context import merged_scope, run_scope, scope_ids

SOURCE = "inferscale_memory"
HANDLE_KEY = "kv_handle"
"""Key of a document's metadata under which its handle stands."""


class InferScaleRetriever(BaseRetriever):
    """Finds facts; each document is one fact.

    ``page_content`` is the fact's text, ``id`` its id. ``metadata`` holds the fact's own metadata, and over it ``id``,
    ``score`` (cosine), ``speaker``, ``created_at`` (ISO 8601), ``source`` (``"inferscale_memory"``) and ``kv_handle``,
    a handle of this one fact. So documents may be filtered, reranked and merged, and the handles of those that are left
    name just those; ``kv_handles`` and ``format_handles`` put them into a prompt in place of the texts.

    Whose memory: the ids given here, those of the run's context and those of ``config["configurable"]``, all together;
    an id named twice must be the same. A call for nobody raises ``ScopeError``.

    Callbacks and traces of a retriever hold its documents, handles included: those are signed, bound to the scope, and
    expire.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    memory: Memory = Field(exclude=True, repr=False)
    k: int | None = None
    """How many facts; None: as the memory is set. ``invoke(query, k=3)`` is for one call."""
    refresh: Refresh | None = None
    """How many of the best-ranked are prefilled as text behind the injected ones, ``"all"`` or ``"auto"``; None: as the
    memory is set."""
    threshold: float | None = None
    """Leave out facts of a lower cosine; None: none."""
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Find facts; keywords ``k``, ``refresh`` and ``threshold`` are for this call.

        Raises:
            ScopeError: nobody is named, or one id twice and differently.
            InvalidInputError: as ``Memory.search``, or ``refresh`` is none.
        """
        # LangChain hands a config no further than this, unless a chain stands around the retriever.
        return super().invoke(input, config, **kwargs, ids=self._scope(config))

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Async twin of ``invoke``."""
        return await super().ainvoke(input, config, **kwargs, ids=self._scope(config))

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return self._documents(query, **options)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return await asyncio.to_thread(self._documents, query, **options)

    def _scope(self, config: RunnableConfig | None) -> dict[str, Any]:
        ids = merged_scope({"the retriever's own ids": scope_ids(self), "the run": run_scope(ensure_config(config))})
        Scope.of(**ids)
        return ids

    def _documents(
        self,
        query: str,
        ids: dict[str, Any],
        k: int | None = None,
        refresh: Refresh | None = None,
        threshold: float | None = None,
    ) -> list[Document]:
        found = self.memory.search(
            query,
            self.k if k is None else k,
            threshold=self.threshold if threshold is None else threshold,
            **ids,
        )
        fresh = self.memory.dial.refresh(self.refresh if refresh is None else refresh, found)
        owner = Scope.of(**ids)
        mint = self.memory.handles.mint
        return [
            _document(one, mint(owner, [(one.fact.id, one.fact.revision)], int(at < fresh)))
            for at, one in enumerate(found)
        ]


def kv_handles(documents: Sequence[Document]) -> list[str]:
    """The handles of documents in prompt order, the best-ranked (the first) last; for ``kv_handles=`` of a model call.

    Documents without one, of other retrievers, are passed over.
    """
    found = (document.metadata.get(HANDLE_KEY) for document in reversed(documents))
    return list(dict.fromkeys(handle for handle in found if isinstance(handle, str)))


def format_handles(documents: Sequence[Document]) -> str:
    """What stands in a system message, or in a string prompt, in place of the documents' texts.

    Documents without a handle are given as text, so nothing that was retrieved is lost::

        prompt = ChatPromptTemplate([("system", "Use what you know. {context}"), ("human", "{input}")])
        chain = {"context": retriever | format_handles, "input": RunnablePassthrough()} | prompt | model
    """
    texts = [document.page_content for document in documents if not document.metadata.get(HANDLE_KEY)]
    return "\n".join([*texts, "".join(kv_handles(documents))]).strip("\n")


def _document(scored: ScoredFact, handle: str) -> Document:
    fact = scored.fact
    known: dict[str, Any] = {
        "id": fact.id,
        "score": scored.score,
        "speaker": fact.speaker,
        "created_at": fact.created_at.isoformat(),
        "source": SOURCE,
        HANDLE_KEY: handle,
    }
    return Document(id=fact.id, page_content=fact.text, metadata={**fact.metadata, **known})
