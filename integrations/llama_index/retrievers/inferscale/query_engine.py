"""``InferScaleQueryEngine``: answers a query from one KV handle instead of from texts in the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError
from llama_index.llms.inferscale import InferScale
from llama_index.retrievers.inferscale.base import HANDLE_KEY, InferScaleRetriever, other_texts

SYSTEM_PROMPT = "You are a helpful assistant. Answer the question from what you remember."
EMPTY = "Empty Response"
"""What LlamaIndex's own query engines answer where nothing was found."""


class InferScaleQueryEngine(BaseQueryEngine):
    """Retrieves facts, and has the LLM answer with one KV handle of them in its system message.

    ``response.source_nodes`` are the facts that were in the prompt, best first, with their cosines;
    ``response.metadata`` has ``kv``, where the prompt's tokens came from, ``recalled``, the facts in prompt order, and
    ``finish_reason``; of a stream, once it has ended. Where nothing is found the answer is ``"Empty Response"``, and no
    model is asked, as with LlamaIndex's own query engines.

    Args:
        retriever: finds the facts; its scope is whose memory it is.
        llm: an ``InferScale`` of the memory's engine; None: ``Settings.llm``.
        system_prompt: what the system message says before the facts; also a prompt of ``get_prompts()``.
        node_postprocessors: filter or reorder the nodes before they are injected. Nodes that are no facts of the memory
            are given as text.
        streaming: answer with a ``StreamingResponse``.
        callback_manager: LlamaIndex's.

    Raises:
        ConfigError: ``retriever`` or ``llm`` is of another kind.
    """

    def __init__(
        self,
        retriever: InferScaleRetriever,
        llm: LLM | None = None,
        *,
        system_prompt: str = SYSTEM_PROMPT,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if not isinstance(retriever, InferScaleRetriever):
            raise ConfigError(f"retriever is a {type(retriever).__name__}; wanted an InferScaleRetriever.")
        llm = Settings.llm if llm is None else llm
        if not isinstance(llm, InferScale):
            raise ConfigError(
                f"llm is a {type(llm).__name__}, which opens no KV handles; give llm=InferScale(engine=...), or set "
                "Settings.llm to one."
            )
        self._retriever = retriever
        self._llm = llm
        self._system: BasePromptTemplate = PromptTemplate(system_prompt)
        self._postprocessors = list(node_postprocessors)
        self._streaming = streaming
        super().__init__(callback_manager or Settings.callback_manager)

    @classmethod
    def from_defaults(cls, memory: Memory, llm: LLM | None = None, **options: Any) -> InferScaleQueryEngine:
        """A query engine over a memory.

        Args:
            memory: where the facts are.
            llm: see the class.
            options: those of the class, and ``k``, ``refresh``, ``threshold`` and the scope of its retriever.
        """
        own = ("system_prompt", "node_postprocessors", "streaming", "callback_manager")
        mine = {name: options.pop(name) for name in own if name in options}
        return cls(InferScaleRetriever(memory, **options), llm, **mine)

    @property
    def retriever(self) -> InferScaleRetriever:
        """What finds the facts."""
        return self._retriever

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _get_prompts(self) -> dict[str, Any]:
        return {"system_prompt": self._system}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if "system_prompt" in prompts:
            self._system = prompts["system_prompt"]

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {"retriever": self._retriever}

    # -- the steps of a query ------------------------------------------------------------------------------------------

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """The nodes that a query would be answered from."""
        nodes = self._retriever.retrieve(query_bundle)
        for step in self._postprocessors:
            nodes = step.postprocess_nodes(nodes, query_bundle=query_bundle)
        return nodes

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Async twin of ``retrieve``."""
        nodes = await self._retriever.aretrieve(query_bundle)
        for step in self._postprocessors:
            nodes = await step.apostprocess_nodes(nodes, query_bundle=query_bundle)
        return nodes

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from these nodes, best first."""
        answer = _Answer(nodes, additional_source_nodes or ())
        if not nodes:
            return StreamingResponse(iter_of(EMPTY), **answer.fields) if self._streaming else answer.whole(EMPTY)
        messages = self._messages(query_bundle, nodes)
        if self._streaming:
            responses = self._llm.stream_chat(messages, **self._retriever.scope)
            return StreamingResponse(answer.tokens(responses), **answer.fields)
        return answer.of(self._llm.chat(messages, **self._retriever.scope))

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Async twin of ``synthesize``."""
        answer = _Answer(nodes, additional_source_nodes or ())
        if not nodes:
            return AsyncStreamingResponse(aiter_of(EMPTY), **answer.fields) if self._streaming else answer.whole(EMPTY)
        messages = await asyncio.to_thread(self._messages, query_bundle, nodes)
        if self._streaming:
            responses = await self._llm.astream_chat(messages, **self._retriever.scope)
            return AsyncStreamingResponse(answer.atokens(responses), **answer.fields)
        return answer.of(await self._llm.achat(messages, **self._retriever.scope))

    def _messages(self, query: QueryBundle, nodes: Sequence[NodeWithScore]) -> list[ChatMessage]:
        said = "\n\n".join(filter(None, [self._system.format(llm=self._llm), *other_texts(nodes)]))
        system = f"{said}\n\n{self._retriever.handle(nodes)}"
        return [ChatMessage(system, role=MessageRole.SYSTEM), ChatMessage(query.query_str, role=MessageRole.USER)]

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        asked: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=asked) as event:
            response = self.synthesize(query_bundle, self.retrieve(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        asked: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=asked) as event:
            response = await self.asynthesize(query_bundle, await self.aretrieve(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response


class _Answer:
    """Sources and metadata of one answer. Both are filled in place: a stream's are known when it has ended."""

    def __init__(self, nodes: Sequence[NodeWithScore], additional: Sequence[NodeWithScore]) -> None:
        self._nodes = [*nodes, *additional]
        self.fields: dict[str, Any] = {"source_nodes": [*self._nodes], "metadata": {}}

    def of(self, response: ChatResponse) -> Response:
        """The whole answer."""
        self._learn(response)
        return self.whole(response.message.content or "")

    def whole(self, text: str) -> Response:
        """A text as the answer."""
        return Response(text, **self.fields)

    def tokens(self, responses: Generator[ChatResponse, None, None]) -> Generator[str, None, None]:
        """The texts of a stream."""
        with closing(responses):
            for response in responses:
                self._learn(response)
                yield response.delta or ""

    async def atokens(self, responses: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[str, None]:
        """Async twin of ``tokens``."""
        async with aclosing(responses):
            async for response in responses:
                self._learn(response)
                yield response.delta or ""

    def _learn(self, response: ChatResponse) -> None:
        told = response.additional_kwargs
        if "kv" not in told:
            return
        recalled = told["recalled"]
        self.fields["metadata"] |= {"kv": told["kv"], "recalled": recalled, "finish_reason": told.get("finish_reason")}
        # A fact that was forgotten since, or did not fit, is no source of the answer.
        there = {fact["id"] for fact in recalled}
        self.fields["source_nodes"][:] = [
            node for node in self._nodes if node.node.node_id in there or HANDLE_KEY not in node.node.metadata
        ]


def iter_of(text: str) -> Generator[str, None, None]:
    """A stream of one text."""
    yield text


async def aiter_of(text: str) -> AsyncGenerator[str, None]:
    """Async twin of ``iter_of``."""
    yield text
