"""The string model on the real engine: prompts without a chat template, handles anywhere in them."""

from __future__ import annotations

import asyncio

import pytest
from asking import FACTS, QUESTION, eventually, remember
from langchain_core.caches import InMemoryCache
from langchain_core.prompts import PromptTemplate

from inferscale_memory import InvalidInputError
from langchain_inferscale import InferScaleLLM

pytestmark = pytest.mark.engine


@pytest.fixture
def handle(memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return memory.recall(QUESTION, 4, user_id=user)


@pytest.fixture
def llm(engine):
    return InferScaleLLM(engine=engine, max_tokens=8, temperature=0)


def covered(info):
    return info["kv"]["injected"] + info["kv"]["local_hit"]


def test_a_handle_in_a_prompt_is_answered_from(llm, handle):
    prompt = PromptTemplate.from_template("{memory}\nThe dog of Alice is called")
    assert "Rex" in (prompt | llm).invoke({"memory": handle})
    result = llm.generate([f"Again {handle}\nThe dog of Alice is called"])
    info = result.generations[0][0].generation_info
    assert info["kv"]["injected"] > 60
    assert len(info["recalled"]) == 4
    assert info["usage"]["input_token_details"]["cache_read"] == info["kv"]["injected"]


def test_handles_may_come_as_a_keyword(llm, handle):
    for text in (
        llm.invoke("The dog of Alice is called", kv_handles=[handle]),
        asyncio.run(llm.ainvoke("The dog of Alice is called", kv_handles=[handle])),
        "".join(llm.stream("The dog of Alice is called", kv_handles=[handle])),
    ):
        assert "Rex" in text


def test_streams_and_async_forms_say_the_same(llm, handle):
    prompt = f"{handle}\nThe dog of Alice is called"

    async def answers():
        return await llm.ainvoke(prompt), [piece async for piece in llm.astream(prompt)]

    whole, pieces = asyncio.run(answers())
    assert whole == "".join(pieces) == "".join(llm.stream(prompt)) == llm.invoke(prompt)
    assert "Rex" in whole


def test_leaving_a_stream_aborts_the_request(engine, llm, handle):
    stream = llm.stream(f"{handle} Once", max_tokens=1500, ignore_eos=True)
    next(stream)
    stream.close()
    eventually(lambda: not engine.client.output_processor.request_states)


def test_the_cache_tells_handles_given_as_keywords_apart(engine, handle):
    cached = InferScaleLLM(engine=engine, max_tokens=8, temperature=0, cache=InMemoryCache())
    knowing = cached.invoke("The dog of Alice is called", kv_handles=[handle])
    assert "Rex" in knowing
    assert "Rex" not in cached.invoke("The dog of Alice is called")


def test_tokens_are_counted_by_the_model_s_own_tokenizer(engine, llm):
    assert llm.get_num_tokens("The dog.") == len(engine.tokenize("The dog.")) == 3


def test_each_prompt_of_a_batch_is_answered_for_whom_its_own_config_names(llm, handle, user):
    prompts = [f"{handle}\nThe dog of Alice is called"] * 2
    configs = [{"configurable": {"user_id": name}} for name in (user, "somebody else")]
    for mine, theirs in (llm.batch(prompts, configs), asyncio.run(llm.abatch(prompts, configs))):
        assert "Rex" in mine
        assert "Rex" not in theirs


def test_a_keyword_that_is_no_list_of_handles_is_refused_and_none_is_fine(llm, handle):
    assert llm.invoke("Hello", kv_handles=None) == llm.invoke("Hello")
    with pytest.raises(InvalidInputError, match="kv_handles is a Handle; wanted a list, such as"):
        llm.invoke("Hello", kv_handles=handle)
