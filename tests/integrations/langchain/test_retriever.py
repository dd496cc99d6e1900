"""Documents that carry text and handle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_steps import plain_memory
from asking import FACTS, travels
from langchain_core.documents import Document

from inferscale_memory import Memory
from inferscale_memory.errors import InvalidInputError, ScopeError
from inferscale_memory.handles import find_handles
from langchain_inferscale import InferScaleRetriever
from langchain_inferscale.retriever import format_handles, kv_handles


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with plain_memory(tmp_path) as memory:
        memory.add(list(FACTS), user_id="alice", metadata={"page": 7, "source": "diary"})
        memory.add(travels(3, who="Bob"), user_id="bob")
        yield memory


def test_a_document_holds_text_id_score_and_the_facts_own_metadata(memory: Memory) -> None:
    [document] = InferScaleRetriever(memory=memory, user_id="alice", k=1).invoke("What is my dog called?")
    assert document.page_content == FACTS[3]
    assert document.id == document.metadata["id"] == memory.search("dog", 1, user_id="alice")[0].fact.id
    assert 0 < document.metadata["score"] <= 1
    assert document.metadata["page"] == 7
    assert document.metadata["source"] == "inferscale_memory"
    assert document.metadata["created_at"].endswith("+00:00")


def test_each_handle_names_the_fact_of_its_document_and_no_other(memory: Memory) -> None:
    documents = InferScaleRetriever(memory=memory, user_id="alice").invoke("What is my dog called?")
    named = [
        [known.fact.id for known in memory.explain(document.metadata["kv_handle"]).facts] for document in documents
    ]
    assert len(documents) == 4
    assert named == [[document.id] for document in documents]


def test_the_best_ranked_are_refreshed(memory: Memory) -> None:
    documents = InferScaleRetriever(memory=memory, user_id="alice", refresh=1).invoke("What is my dog called?")
    refreshed = [memory.explain(document.metadata["kv_handle"]).refresh for document in documents]
    assert refreshed == [1, 0, 0, 0]


def test_k_refresh_and_threshold_can_be_given_for_one_call(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory=memory, user_id="alice", k=1)
    assert len(retriever.invoke("What is my dog called?", k=3)) == 3
    assert len(retriever.invoke("What is my dog called?", k=4, threshold=0.99)) == 0
    [document] = retriever.invoke("What is my dog called?", refresh=2)
    assert memory.explain(document.metadata["kv_handle"]).refresh == 1


def test_a_negative_refresh_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInputError, match=r"refresh is -1; wanted a number of facts"):
        InferScaleRetriever(memory=memory, user_id="alice", refresh=-1).invoke("What is my dog called?")


def test_the_run_says_whose_facts_are_searched(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory=memory)
    documents = retriever.invoke("Who drank tea?", {"configurable": {"user_id": "bob"}})
    assert documents
    assert all(document.page_content.startswith("Bob") for document in documents)


async def test_users_of_one_retriever_do_not_mix_when_they_ask_at_once(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory=memory, k=3)
    configs = [{"configurable": {"user_id": user}} for user in ("alice", "bob")]
    for_alice, for_bob = await retriever.abatch(["Who is it?"] * 2, configs)
    assert {document.page_content for document in for_alice} <= set(FACTS)
    assert {document.page_content for document in for_bob} == set(travels(3, who="Bob"))


def test_a_search_for_nobody_is_refused(memory: Memory) -> None:
    with pytest.raises(ScopeError, match="Pass at least one"):
        InferScaleRetriever(memory=memory).invoke("What is my dog called?")


def test_a_run_cannot_change_whose_retriever_it_is(memory: Memory) -> None:
    retriever = InferScaleRetriever(memory=memory, user_id="alice")
    with pytest.raises(ScopeError, match=r"different ids for user_id: 'alice' and 'bob'"):
        retriever.invoke("What is my dog called?", {"configurable": {"user_id": "bob"}})


def test_the_context_of_a_running_graph_says_whose_facts_are_searched(memory: Memory) -> None:
    from langgraph.graph import END, START, StateGraph

    @dataclass
    class Context:
        user_id: str

    retriever = InferScaleRetriever(memory=memory, k=1)
    graph = StateGraph(dict, context_schema=Context)
    graph.add_node("find", lambda state: {"found": retriever.invoke(state["question"])})
    graph.add_edge(START, "find")
    graph.add_edge("find", END)
    [document] = graph.compile().invoke({"question": "Who drank tea?"}, context=Context("bob"))["found"]
    assert document.page_content.startswith("Bob")


def test_handles_stand_in_prompt_order_the_best_last(memory: Memory) -> None:
    documents = InferScaleRetriever(memory=memory, user_id="alice").invoke("What is my dog called?")
    handles = kv_handles(documents)
    assert handles == [document.metadata["kv_handle"] for document in reversed(documents)]
    assert find_handles(format_handles(documents)) == handles


def test_a_handle_takes_the_place_of_its_text_and_other_documents_stay_text(memory: Memory) -> None:
    [document] = InferScaleRetriever(memory=memory, user_id="alice", k=1).invoke("What is my dog called?")
    text = format_handles([document, Document(page_content="From elsewhere.")])
    assert "From elsewhere." in text
    assert document.page_content not in text
    assert document.metadata["kv_handle"] in text


def test_no_documents_are_no_text() -> None:
    assert format_handles([]) == ""
    assert kv_handles([]) == []
