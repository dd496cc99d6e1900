"""The query engine on the real engine: facts injected instead of stuffed, sources and accounting in the response."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from asking import FACTS, QUESTION, eventually, remember
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.errors import ConfigError
from llama_index.llms.inferscale import InferScale
from llama_index.retrievers.inferscale import InferScaleQueryEngine, InferScaleRetriever

pytestmark = pytest.mark.engine


@pytest.fixture
def memory(memory_for: Callable[..., Memory], user: str) -> Memory:
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return memory


@pytest.fixture
def llm(engine: LocalEngine) -> InferScale:
    return InferScale(engine=engine, max_tokens=12, temperature=0)


def covered(response: Response) -> int:
    kv = response.metadata["kv"]
    return kv["injected"] + kv["local_hit"]


async def test_a_query_is_answered_from_one_handle_and_the_response_has_its_sources(memory, llm, user):
    engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, k=3)
    response = engine.query(QUESTION)
    found = memory.search(QUESTION, 3, user_id=user)
    assert [node.node.node_id for node in response.source_nodes] == [one.fact.id for one in found]
    assert [node.score for node in response.source_nodes] == [one.score for one in found]
    assert [fact["id"] for fact in response.metadata["recalled"]] == [one.fact.id for one in reversed(found)]
    assert [fact["score"] for fact in response.metadata["recalled"]] == [one.score for one in reversed(found)]
    assert response.metadata["kv"]["injected"] > 50
    again = await engine.aquery(QUESTION)
    assert again.response == response.response
    assert covered(again) > 50


async def test_a_streamed_answer_is_the_same_and_its_accounting_is_there_when_it_has_ended(memory, llm, user):
    whole = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, k=3).query(QUESTION)
    engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, k=3, streaming=True)
    streamed = engine.query(QUESTION)
    assert streamed.metadata == {}
    assert "".join(streamed.response_gen) == whole.response
    astreamed = await engine.aquery(QUESTION)
    assert (await astreamed.get_response()).response == whole.response
    for response in (streamed, astreamed):
        assert response.metadata["recalled"] == whole.metadata["recalled"]
        assert covered(response) > 50
        assert [node.node.node_id for node in response.source_nodes] == [n.node.node_id for n in whole.source_nodes]


def test_leaving_a_streamed_answer_aborts_the_request(memory, engine, user):
    llm = InferScale(engine=engine, max_tokens=1500, additional_kwargs={"ignore_eos": True})
    tokens = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, streaming=True).query(QUESTION).response_gen
    next(tokens)
    assert engine.client.output_processor.request_states
    tokens.close()
    eventually(lambda: not engine.client.output_processor.request_states)


def test_refreshing_every_fact_is_plain_text_with_the_same_sources(memory, llm, user):
    engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, k=3, refresh=3)
    response = engine.query(QUESTION)
    assert response.metadata["kv"]["injected"] == 0
    assert len(response.source_nodes) == 3


def test_nodes_that_postprocessors_leave_are_injected_and_strangers_are_given_as_text(memory, llm, user):
    retriever = InferScaleRetriever(memory, user_id=user)
    kept = InferScaleQueryEngine(retriever, llm, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.3)])
    response = kept.query(QUESTION)
    assert 0 < len(response.source_nodes) < len(FACTS)
    assert {node.node.node_id for node in response.source_nodes} == {f["id"] for f in response.metadata["recalled"]}
    asked = kept.retrieve(_bundle())
    stranger = NodeWithScore(node=TextNode(text="The cat of Alice is called Tom."), score=0.3)
    both = kept.synthesize(_bundle(), [*asked, stranger])
    assert both.source_nodes[-1] is stranger
    longer = both.metadata["kv"]
    assert sum(longer[n] for n in ("injected", "local_hit", "prefilled")) > sum(
        response.metadata["kv"][n] for n in ("injected", "local_hit", "prefilled")
    )


async def test_it_is_a_tool(memory, llm, user):
    engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user)
    tool = QueryEngineTool.from_defaults(engine, name="memory", description="What is known about the user.")
    output = await tool.acall(input=QUESTION)
    assert output.content == engine.query(QUESTION).response
    assert len(output.raw_output.source_nodes) == len(FACTS)


def test_where_nothing_is_remembered_no_model_is_asked(memory, llm):
    for streaming in (False, True):
        engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id="nobody", streaming=streaming)
        response = engine.query(QUESTION)
        assert str(response) == "Empty Response"
        assert (response.source_nodes, response.metadata) == ([], {})


def test_the_system_prompt_is_one_of_its_prompts(memory, llm, user):
    engine = InferScaleQueryEngine.from_defaults(memory, llm, user_id=user, system_prompt='Answer as {"a": 1}.')
    [asked, _] = engine._messages(_bundle(), engine.retrieve(_bundle()))
    assert asked.content.startswith('Answer as {"a": 1}.\n\n⟦kv:')
    engine.update_prompts({"system_prompt": PromptTemplate("Be brief.")})
    assert engine.get_prompts()["system_prompt"].get_template() == "Be brief."
    [asked, _] = engine._messages(_bundle(), engine.retrieve(_bundle()))
    assert asked.content.startswith("Be brief.\n\n⟦kv:")


def test_an_llm_that_opens_no_handles_is_refused(memory, llm, user, monkeypatch):
    with pytest.raises(ConfigError, match="llm is a MockLLM, which opens no KV handles"):
        InferScaleQueryEngine.from_defaults(memory, MockLLM(), user_id=user)
    monkeypatch.setattr(Settings, "_llm", llm)
    InferScaleQueryEngine.from_defaults(memory, user_id=user)
    with pytest.raises(ConfigError, match="retriever is a Memory; wanted an InferScaleRetriever"):
        InferScaleQueryEngine(memory, llm)


def _bundle() -> QueryBundle:
    return QueryBundle(QUESTION)
