"""The LLM on the real engine: where handles are found, what comes back, and how calls end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any, Literal

import pytest
from asking import FACTS, QUESTION, eventually, remember
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole, ToolCallBlock
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field, field_validator

from inferscale_memory import EngineError, InvalidInputError, LocalEngine, Memory
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


# -- how calls end -----------------------------------------------------------------------------------------------------


class Keeper(BaseEventHandler):
    """Keeps every event, exceptions and their frames included, as debug handlers do."""

    events: list[Any] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self.events.append(event)

    def named(self, name: str) -> list[Any]:
        return [event for event in self.events if event.class_name() == name]


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    root = get_dispatcher()
    before = list(root.event_handlers)
    keeper = Keeper()
    root.add_event_handler(keeper)
    yield keeper
    root.event_handlers = before


def test_leaving_a_stream_or_cancelling_a_call_aborts_the_engine_s_request(engine, llm, handle, keeper):
    messages = [system(str(handle)), ChatMessage(QUESTION)]
    for stream in (
        llm.stream_chat(messages, **LONG),
        llm.stream_complete(QUESTION, **LONG),
        llm.stream_complete(QUESTION, formatted=True, **LONG),
    ):
        next(stream)
        assert requests_of(engine) == 1
        stream.close()
        eventually(lambda: requests_of(engine) == 0)

    async def leave():
        async with aclosing(await llm.astream_chat(messages, **LONG)) as responses:
            async for _ in responses:
                break
        task = asyncio.ensure_future(llm.achat(messages, **LONG))
        while not requests_of(engine):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    eventually(lambda: requests_of(engine) == 0)
    assert keeper.named("ExceptionEvent")


def test_a_call_that_runs_into_its_timeout_is_aborted(engine, llm):
    with pytest.raises(EngineError, match=r"no whole answer within 0.05 s; the request was aborted"):
        llm.complete("Hello", timeout=0.05, **LONG)
    with pytest.raises(EngineError, match="the request was aborted"):
        list(InferScale(engine=engine, timeout=0.2).stream_complete("Hello", **LONG))
    eventually(lambda: requests_of(engine) == 0)


def test_the_instrumentation_is_told_of_every_answer_what_was_recalled(llm, handle, keeper):
    messages = [system(str(handle)), ChatMessage(QUESTION)]
    llm.chat(messages)
    list(llm.stream_chat(messages))
    llm.complete(QUESTION)
    events = keeper.named("InferScaleRecallEvent")
    assert [len(event.recalled) for event in events] == [4, 4, 0]
    assert [event.span_id.split("-")[0] for event in events] == [
        f"InferScale.{method}" for method in ("chat", "stream_chat", "complete")
    ]
    assert events[0].kv["injected"] + events[0].kv["local_hit"] > 60
    ends = keeper.named("LLMChatEndEvent")
    assert [len(event.response.additional_kwargs["recalled"]) for event in ends] == [4, 4]


# -- structured prediction ---------------------------------------------------------------------------------------------


class Pet(BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["dog", "cat"]


class OneLine(InferScale):
    """Held to one line and two values besides: greedy decoding by 135M parameters fills JSON with line breaks."""

    def _request(self, messages: Any, call: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        sent, options = super()._request(messages, call)
        assert options.pop("response_format")["json_schema"]["schema"] == Pet.model_json_schema()
        return sent, {**options, "structured_outputs": {"regex": r'\{"name": "(Rex|Tom)", "kind": "(dog|cat)"\}'}}


def test_structured_prediction_is_held_to_the_schema(llm):
    assert isinstance(llm.structured_predict(Pet, PromptTemplate("A pet?"), llm_kwargs={"max_tokens": 40}), Pet)


async def test_every_path_of_structured_prediction_resolves(llm, handle, keeper):
    llm = OneLine(engine=llm.engine, max_tokens=40, temperature=0)
    template, question = PromptTemplate("{memory} {question}"), 'Which pet has Alice? As {"name": ...}.'
    words = {"memory": handle, "question": question}
    pet = llm.structured_predict(Pet, template, **words)
    *partial, last = [one async for one in await llm.astream_structured_predict(Pet, template, **words)]
    assert last == pet
    assert len(partial) > 3
    structured = llm.as_structured_llm(Pet)
    assert (await structured.acomplete(f"{handle} {question}")).raw == pet
    assert isinstance(structured.chat([system(f"Be brief. {handle}"), ChatMessage(question)]).raw, Pet)
    assert [len(event.recalled) for event in keeper.named("InferScaleRecallEvent")] == [4] * 4


def test_a_structured_answer_that_is_cut_or_refused_by_a_validator_says_so(llm):
    class Never(Pet):
        @field_validator("name")
        @classmethod
        def _refuse(cls, value: str) -> str:
            raise ValueError("no such pet")

    with pytest.raises(InvalidInputError, match=r"cut before its Pet was whole: .* Allow more max_tokens"):
        llm.structured_predict(Pet, PromptTemplate("A pet?"), llm_kwargs={"max_tokens": 3})
    with pytest.raises(InvalidInputError, match="the answer is no Never"):
        llm.structured_predict(Never, PromptTemplate("A pet?"), llm_kwargs={"max_tokens": 40})


def test_another_program_mode_forces_a_tool_call(llm):
    forced = InferScale(engine=llm.engine, max_tokens=60, temperature=0, pydantic_program_mode="function")
    assert isinstance(forced.structured_predict(Pet, PromptTemplate("Which pet has Alice?")), Pet)


# -- tools -------------------------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def feed(name: str) -> str:
    """Feed a pet."""
    return f"{name} is fed."


class Feed(BaseModel):
    name: Literal["Rex", "Tom"]


ADD, FEED = FunctionTool.from_defaults(add), FunctionTool.from_defaults(feed, fn_schema=Feed)
CALLS = r'(<tool_call>\n\{"name": "feed", "arguments": \{"name": "(Rex|Tom)"\}\}\n</tool_call>\n?){2}'
TWO = {"structured_outputs": {"regex": CALLS}, "max_tokens": 80}


def selected(llm: InferScale, response: ChatResponse) -> list[tuple[str, dict[str, Any]]]:
    return [(call.tool_name, call.tool_kwargs) for call in llm.get_tool_calls_from_response(response)]


async def test_parallel_calls_come_back_whole_and_streamed(llm, handle):
    history = [system(str(handle)), ChatMessage("Feed both.")]
    asked = {"chat_history": history, "allow_parallel_tool_calls": True, **TWO}
    answer = llm.chat_with_tools([FEED], **asked)
    calls = selected(llm, answer)
    assert [name for name, _ in calls] == ["feed", "feed"]
    assert all(arguments["name"] in ("Rex", "Tom") for _, arguments in calls)
    blocks = [block for block in answer.message.blocks if isinstance(block, ToolCallBlock)]
    assert [block.tool_kwargs for block in blocks] == [arguments for _, arguments in calls]
    assert len({block.tool_call_id for block in blocks}) == 2
    assert covered(answer) > 60
    responses = [response async for response in await llm.astream_chat_with_tools([FEED], **asked)]
    assert [name for name, _ in selected(llm, responses[-1])] == ["feed", "feed"]
    growing = [llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) for response in responses]
    assert [len(calls) for calls in growing] == sorted(len(calls) for calls in growing)


def test_without_parallel_calls_one_is_made(llm):
    answer = llm.chat_with_tools([FEED], "Feed both.", **TWO)
    assert len(selected(llm, answer)) == 1


@pytest.mark.parametrize("forced", [{"tool_required": True}, {"tool_choice": "add"}])
def test_a_forced_call_is_made_and_held_to_its_schema(llm, forced):
    answer = llm.chat_with_tools([ADD], "Hello.", **forced, max_tokens=60)
    [(name, arguments)] = selected(llm, answer)
    assert name == "add"
    assert all(isinstance(arguments[one], int) for one in ("a", "b"))


def test_predict_and_call_runs_the_tool(llm):
    said = llm.predict_and_call([FEED], "Feed Rex.", tool_required=True, max_tokens=60)
    assert said.response in ("Rex is fed.", "Tom is fed.")


@pytest.mark.parametrize("room", [14, 18])
def test_a_call_that_was_cut_is_not_run_with_half_of_its_arguments(llm, room):
    call = r'<tool_call>\n\{"name": "add", "arguments": \{"a": 11, "b": 22\}\}\n</tool_call>'
    *_, last = llm.stream_chat_with_tools([ADD], "Hello.", structured_outputs={"regex": call}, max_tokens=room)
    with pytest.raises(InvalidInputError, match=f"cut at {room} tokens, while it called 'add'"):
        llm.get_tool_calls_from_response(last)


def test_tool_results_and_earlier_calls_are_told_to_the_model(llm):
    call = ToolCallBlock(tool_call_id="1", tool_name="add", tool_kwargs={"a": 2, "b": 3})
    said = ChatMessage(role="assistant", blocks=[call])
    result = ChatMessage("5", role="tool", additional_kwargs={"tool_call_id": "1"})
    asked = ChatMessage("What is 2 + 3?")
    with_result = llm.count_tokens([asked, said, result])
    assert with_result > llm.count_tokens([asked, said]) > llm.count_tokens([asked])
    answer = llm.chat_with_tools([ADD], chat_history=[asked, said, result], max_tokens=4)
    assert answer.additional_kwargs["prompt_tokens"] == llm.count_tokens([asked, said, result], [ADD])


def test_another_model_s_name_is_refused(llm):
    with pytest.raises(InvalidInputError, match="the request names 'gpt-4o'"):
        llm.complete("Hello", model="gpt-4o")


def test_an_answer_s_log_probabilities_are_llama_index_s(llm):
    answer = llm.chat([ChatMessage("Hello")], logprobs=True, top_logprobs=2, max_tokens=3)
    assert [len(token) for token in answer.logprobs] == [2, 2, 2]
    assert answer.logprobs[0][0].logprob <= 0
