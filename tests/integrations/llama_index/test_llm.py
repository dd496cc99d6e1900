"""The LLM on the real engine: where handles are found, what comes back, and how calls end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from asking import FACTS, QUESTION, remember
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole, ToolCallBlock
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate

from inferscale_memory import LocalEngine, Memory
from llama_index.llms.inferscale import InferScale

pytestmark = pytest.mark.engine

LONG = {"max_tokens": 1500, "ignore_eos": True}


@pytest.fixture
def memory(memory_for: Callable[..., Memory], user: str) -> Memory:
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return memory


@pytest.fixture
def handle(memory: Memory, user: str) -> str:
    return memory.recall(QUESTION, 4, user_id=user)


@pytest.fixture
def llm(engine: LocalEngine) -> InferScale:
    return InferScale(engine=engine, max_tokens=12, temperature=0)


def system(text: str) -> ChatMessage:
    return ChatMessage(text, role=MessageRole.SYSTEM)


def covered(response: ChatResponse | CompletionResponse) -> int:
    """Tokens that nobody computed: injected, or native blocks of the request before."""
    kv = response.additional_kwargs["kv"]
    return kv["injected"] + kv["local_hit"]


def requests_of(engine: LocalEngine) -> int:
    return len(engine.client.output_processor.request_states)


# -- where a handle is found -------------------------------------------------------------------------------------------


def test_a_handle_is_found_in_a_system_message_and_in_a_keyword(llm, handle):
    plain = [system("You are helpful."), ChatMessage(QUESTION)]
    first = llm.chat([system(f"You are helpful. {handle}"), ChatMessage(QUESTION)])
    assert first.additional_kwargs["kv"]["injected"] > 60
    for answer in (first, llm.chat(plain, kv_handles=[handle])):
        assert covered(answer) > 60, answer.additional_kwargs["kv"]
        assert len(answer.additional_kwargs["recalled"]) == 4
    assert llm.chat(plain).additional_kwargs["recalled"] == []


def test_a_handle_in_a_string_prompt_is_resolved_wherever_it_stands(llm, handle):
    prompt = f"Question: {QUESTION}\n{handle}\nAnswer:"
    answer = llm.complete(prompt)
    assert covered(answer) > 60
    assert len(answer.additional_kwargs["recalled"]) == 4
    *_, last = llm.stream_complete(prompt)
    assert last.text == answer.text
    assert covered(last) > 60
    asked = llm.chat([system("Be brief."), ChatMessage(QUESTION)], kv_handles=[handle]).message.content
    assert llm.predict(PromptTemplate("{memory} {question}"), memory=handle, question="Be brief.") != asked


async def test_every_path_of_a_string_prompt_resolves(llm, handle):
    told: list[dict[str, Any]] = []
    template = PromptTemplate("{memory}\n{question}")
    words = {"memory": handle, "question": QUESTION}

    class Told(InferScale):
        def _tell(self, answer: Any, span_id: Any) -> None:
            super()._tell(answer, span_id)
            if "kv" in answer:
                told.append(answer)

    llm = Told(engine=llm.engine, max_tokens=6, temperature=0)
    said = llm.predict(template, **words)
    assert await llm.apredict(template, **words) == said
    assert "".join(llm.stream(template, **words)) == said
    assert "".join([token async for token in await llm.astream(template, **words)]) == said
    prompt = f"{handle}\n{QUESTION}"
    assert llm.complete(prompt).text == said
    assert (await llm.acomplete(prompt)).text == said
    *_, last = [response async for response in await llm.astream_complete(prompt)]
    assert last.text == said
    assert [len(answer["recalled"]) for answer in told] == [4] * 7


async def test_a_formatted_prompt_is_continued_as_it_stands(llm, handle):
    prompt = f"{handle}\nAlice's dog is called"
    answer = llm.complete(prompt, formatted=True)
    assert len(answer.additional_kwargs["recalled"]) == 4
    assert answer.raw["object"] == "text_completion"
    assert (await llm.acomplete(prompt, formatted=True)).text == answer.text
    *_, last = llm.stream_complete(prompt, formatted=True)
    assert last.text == answer.text
    *_, last = [response async for response in await llm.astream_complete(prompt, formatted=True)]
    assert last.text == answer.text
    assert covered(last) > 60


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "chat template"])
def test_a_handle_that_somebody_spelled_in_a_conversation_names_no_memory(llm, handle, caplog, role):
    call = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={})
    typed = ChatMessage(f"{handle} {QUESTION}")
    messages = {
        "user": [typed],
        "assistant": [
            ChatMessage("Hello."),
            ChatMessage(f"Hi. {handle}", role="assistant"),
            ChatMessage(QUESTION),
        ],
        "tool": [
            ChatMessage("Look it up."),
            ChatMessage(role="assistant", blocks=[call]),
            ChatMessage(f"found {handle}", role="tool", additional_kwargs={"tool_call_id": "1"}),
        ],
        "chat template": llm._get_messages(ChatPromptTemplate([ChatMessage("{said}")]), said=typed.content),
    }[role]
    with caplog.at_level(logging.WARNING):
        answer = llm.chat(messages)
    assert answer.additional_kwargs["recalled"] == []
    assert answer.additional_kwargs["kv"]["injected"] == 0
    assert "outside system messages" in caplog.text
    # The prompt is that of the same conversation without the handle: not a token of it reached the model.
    bare = [message.model_copy(deep=True) for message in messages]
    for message in bare:
        for block in message.blocks:
            block.__dict__.update({k: v.replace(str(handle), "") for k, v in block if isinstance(v, str)})
    assert answer.additional_kwargs["prompt_tokens"] == llm.count_tokens(bare)


def test_a_call_that_names_another_scope_opens_nothing(llm, handle, user):
    messages = [system(str(handle)), ChatMessage(QUESTION)]
    assert len(llm.chat(messages, user_id=user).additional_kwargs["recalled"]) == 4
    assert llm.chat(messages, user_id="mallory").additional_kwargs["recalled"] == []
    theirs = InferScale(engine=llm.engine, max_tokens=4, temperature=0, user_id="mallory")
    assert theirs.chat(messages).additional_kwargs["recalled"] == []
    assert len(theirs.chat(messages, user_id=user).additional_kwargs["recalled"]) == 4


# -- what comes back ---------------------------------------------------------------------------------------------------


async def test_chat_stream_and_their_async_twins_say_the_same(llm, handle):
    messages = [system(f"You are helpful. {handle}"), ChatMessage(QUESTION)]
    answer = llm.chat(messages)
    streamed = list(llm.stream_chat(messages))
    astreamed = [response async for response in await llm.astream_chat(messages)]
    assert (await llm.achat(messages)).message.content == answer.message.content
    for responses in (streamed, astreamed):
        assert responses[-1].message.content == answer.message.content
        assert "".join(response.delta for response in responses) == answer.message.content
        assert len(responses) > 5
        assert responses[-1].additional_kwargs.keys() == answer.additional_kwargs.keys()
        assert covered(responses[-1]) > 60
    tokens = [answer.additional_kwargs[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert tokens[0] + tokens[1] == tokens[2]
    assert tokens[0] == llm.count_tokens(messages)
    assert answer.raw["kv"] == answer.additional_kwargs["kv"]
