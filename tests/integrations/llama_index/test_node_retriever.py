"""Nodes that carry text and handle. No engine: what a handle opens to is asked of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import FACTS, QUESTION, embed, travels
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError, InvalidInputError, ScopeError
from inferscale_memory.handles import find_handles
from llama_index.retrievers.inferscale import InferScaleRetriever, format_handles, kv_handles


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(None, embedder=embed, index="numpy", database_url=f"sqlite:///{tmp_path}/facts.db") as memory:
        memory.add(list(FACTS), user_id="alice", metadata={"topic": "life", "kv_handle": "a lie"})
        memory.add(travels(3, who="Bob"), user_id="bob")
        yield memory


def opened(memory: Memory, handle: str) -> list[str]:
    """Texts of the facts behind a handle, in prompt order."""
    return [one.fact.text for one in memory.explain(handle).facts]


def test_a_node_is_a_fact_with_its_text_score_and_a_handle_of_its_own(memory: Memory) -> None:
    nodes = InferScaleRetriever(memory, user_id="alice", k=2).retrieve(QUESTION)
    found = memory.search(QUESTION, 2, user_id="alice")
    assert [node.node.node_id for node in nodes] == [one.fact.id for one in found]
    assert [node.score for node in nodes] == [one.score for one in found]
    assert [node.text for node in nodes] == [one.fact.text for one in found]
    for node in nodes:
        assert opened(memory, node.metadata["kv_handle"]) == [node.text]
        assert node.metadata["topic"] == "life"


def test_no_model_and_no_embedder_is_shown_a_handle(memory: Memory) -> None:
    [node] = InferScaleRetriever(memory, user_id="alice", k=1).retrieve(QUESTION)
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        shown = node.node.get_content(metadata_mode=mode)
        assert "kv:" not in shown
        assert node.text in shown
        assert "topic: life" in shown


async def test_the_async_retriever_finds_the_same(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory, user_id="alice", threshold=0.2)
    nodes = await retriever.aretrieve(QueryBundle(QUESTION))
    assert [node.node.node_id for node in nodes] == [node.node.node_id for node in retriever.retrieve(QUESTION)]
    assert 0 < len(nodes) < len(FACTS)


@pytest.mark.parametrize(("refresh", "fresh"), [(None, 0), (1, 1), (9, 2)])
def test_the_best_ranked_are_named_to_be_prefilled(memory: Memory, refresh: int | None, fresh: int) -> None:
    retriever = InferScaleRetriever(memory, user_id="alice", k=2, refresh=refresh)
    nodes = retriever.retrieve(QUESTION)
    assert sum(memory.explain(node.metadata["kv_handle"]).refresh for node in nodes) == fresh
    assert memory.explain(retriever.handle(nodes)).refresh == fresh


def test_one_handle_of_all_nodes_has_the_best_last_and_knows_their_scores(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory, user_id="alice")
    nodes = retriever.retrieve(QUESTION)
    explained = memory.explain(retriever.handle(nodes)).facts
    assert [one.fact.id for one in explained] == [node.node.node_id for node in reversed(nodes)]
    assert [one.score for one in explained] == [node.score for node in reversed(nodes)]
    assert retriever.handle([]) == ""


def test_nodes_that_a_postprocessor_leaves_are_the_ones_named(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory, user_id="alice")
    nodes = SimilarityPostprocessor(similarity_cutoff=0.3).postprocess_nodes(retriever.retrieve(QUESTION))
    assert opened(memory, retriever.handle(nodes)) == [node.text for node in reversed(nodes)]
    assert 0 < len(nodes) < len(FACTS)


def test_a_forgotten_fact_and_another_s_are_not_opened(memory: Memory) -> None:
    alice, bob = (InferScaleRetriever(memory, user_id=user) for user in ("alice", "bob"))
    mine, theirs = alice.retrieve(QUESTION), bob.retrieve("Who drank tea?")
    memory.delete(mine[0].node.node_id, user_id="alice")
    assert opened(memory, alice.handle([*mine, *theirs])) == [node.text for node in reversed(mine[1:])]


def test_handles_stand_in_prompt_order_and_other_nodes_stay_text(memory: Memory) -> None:
    nodes = InferScaleRetriever(memory, user_id="alice", k=2).retrieve(QUESTION)
    other = NodeWithScore(node=TextNode(text="From elsewhere."), score=0.1)
    handles = [node.metadata["kv_handle"] for node in reversed(nodes)]
    assert kv_handles([*nodes, other]) == handles
    text = format_handles([*nodes, other])
    assert text.startswith("From elsewhere.\n")
    assert find_handles(text) == handles
    assert (format_handles([]), kv_handles([])) == ("", [])


def test_the_events_of_a_retrieval_carry_its_nodes(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_index.core.instrumentation.event_handlers import BaseEventHandler

    ends: list[Any] = []

    class Listener(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            ends.extend([event] if event.class_name() == "RetrievalEndEvent" else [])

    root = get_dispatcher()
    monkeypatch.setattr(root, "event_handlers", [*root.event_handlers, Listener()])
    nodes = InferScaleRetriever(memory, user_id="alice", k=1).retrieve(QUESTION)
    assert [node.node.node_id for node in ends[0].nodes] == [nodes[0].node.node_id]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ScopeError, "Pass at least one"),
        ({"user_id": " "}, ScopeError, "user_id is blank"),
        ({"user_id": "alice", "k": 0}, InvalidInputError, "k is 0; wanted a number of facts, 1 to"),
        ({"user_id": "alice", "refresh": -1}, InvalidInputError, "refresh is -1; wanted a number of facts, 0 to"),
        ({"user_id": "alice", "kk": 3}, TypeError, "kk"),
    ],
)
def test_what_could_never_work_is_refused_at_once(
    memory: Memory, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        InferScaleRetriever(memory, **options)


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory is a str; give the inferscale_memory\.Memory"):
        InferScaleRetriever("alice", user_id="alice")  # type: ignore[arg-type]
