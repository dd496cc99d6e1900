"""``InferScaleRetriever``: facts as LlamaIndex nodes, each with its text and with its KV handle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError
from inferscale_memory.memory_finding import check_options
from inferscale_memory.quality import Refresh
from inferscale_memory.retrieval import ScoredFact
from inferscale_memory.scope import Scope

SOURCE = "inferscale_memory"
HANDLE_KEY = "kv_handle"
"""Key of a node's metadata under which its handle stands."""
# Neither of these says anything to a model, or to an embedder.
_EXCLUDED = [HANDLE_KEY, "source"]


class InferScaleRetriever(BaseRetriever):
    """Finds facts; each node is one fact.

    A node's ``id_`` is the fact's id, its text the fact's text, its score the cosine. ``metadata`` holds the fact's own
    metadata, and over it ``speaker``, ``created_at`` (ISO 8601), ``source`` (``"inferscale_memory"``) and
    ``kv_handle``, a handle of this one fact; the last two are kept out of what a model or an embedder is shown. So
    nodes may be filtered, reranked and merged, and the handles of those that are left name just those: ``kv_handles``
    and ``format_handles`` put them into a prompt in place of the texts, ``InferScaleQueryEngine`` does all of it.

    Callbacks and events hold the nodes, handles included: those are signed, bound to the scope, and expire.

    Args:
        memory: where the facts are.
        k: how many facts, at most; None: as the memory is set.
        refresh: how many of the best-ranked are prefilled as text behind the injected ones, ``"all"`` or ``"auto"``;
            None: as the memory is set.
        threshold: leave out facts of a lower cosine; None: none.
        user_id: whose memory, with the other ids; at least one of user, agent and session.
        agent_id: see ``user_id``.
        session_id: see ``user_id``.
        tenant_id: see ``user_id``.
        callback_manager: LlamaIndex's.
        verbose: LlamaIndex's.

    Raises:
        ScopeError: nobody is named, or an id is blank.
        ConfigError: ``memory`` is no ``Memory``.
        InvalidInputError: another argument is out of range; (calls) the query is blank.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        k: int | None = None,
        refresh: Refresh | None = None,
        threshold: float | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        if not isinstance(memory, Memory):
            raise ConfigError(f"memory is a {type(memory).__name__}; give the inferscale_memory.Memory of the engine.")
        check_options(k, refresh)
        ids = {"user_id": user_id, "agent_id": agent_id, "session_id": session_id, "tenant_id": tenant_id}
        self.scope: dict[str, Any] = {name: value for name, value in ids.items() if value is not None}
        self.memory = memory
        self.k = k
        self.refresh = refresh
        self.threshold = threshold
        Scope.of(**self.scope)
        super().__init__(callback_manager=callback_manager, verbose=verbose)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.memory.search(query_bundle.query_str, self.k, threshold=self.threshold, **self.scope)
        fresh = self.memory.dial.refresh(self.refresh, found)
        return [_node(one, self.memory.name([one], int(at < fresh), **self.scope)) for at, one in enumerate(found)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def handle(self, nodes: Sequence[NodeWithScore]) -> str:
        """One handle of the facts among the nodes, best first as they stand; empty where there are none.

        Facts that were deleted since are left out, and those of another scope are named in vain.
        """
        scores = {node.node.node_id: node.score or 0.0 for node in nodes if _is_fact(node)}
        facts = self.memory.store.get_many(scores)
        found = [ScoredFact(facts[fact_id], score) for fact_id, score in scores.items() if fact_id in facts]
        return self.memory.name(found, self.refresh, **self.scope) if found else ""


def kv_handles(nodes: Sequence[NodeWithScore]) -> list[str]:
    """The handles of nodes in prompt order, the best-ranked (the first) last; for ``kv_handles=`` of an LLM call.

    Nodes without one, of other retrievers, are passed over.
    """
    return list(dict.fromkeys(node.node.metadata[HANDLE_KEY] for node in reversed(nodes) if _is_fact(node)))


def format_handles(nodes: Sequence[NodeWithScore]) -> str:
    """What stands in a system message, or in a string prompt, in place of the nodes' texts.

    Nodes without a handle are given as text, so nothing that was retrieved is lost.
    """
    return "\n".join([*other_texts(nodes), "".join(kv_handles(nodes))]).strip("\n")


def other_texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    """Texts of the nodes that are no facts of a memory."""
    return [node.node.get_content() for node in nodes if not _is_fact(node)]


def _is_fact(node: NodeWithScore) -> bool:
    return isinstance(node.node.metadata.get(HANDLE_KEY), str)


def _node(scored: ScoredFact, handle: str) -> NodeWithScore:
    fact = scored.fact
    known: dict[str, Any] = {
        "created_at": fact.created_at.isoformat(),
        "source": SOURCE,
        HANDLE_KEY: handle,
    }
    if fact.speaker is not None:
        known["speaker"] = fact.speaker
    node = TextNode(
        id_=fact.id,
        text=fact.text,
        metadata={**fact.metadata, **known},
        excluded_llm_metadata_keys=list(_EXCLUDED),
        excluded_embed_metadata_keys=list(_EXCLUDED),
    )
    return NodeWithScore(node=node, score=scored.score)
