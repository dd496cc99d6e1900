"""What the LLM makes of LlamaIndex's messages and settings, without an engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ChatResponse,
    CitableBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, RichPromptTemplate, SelectorPromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.serving.base import AnsweringEngine
from llama_index.llms.inferscale import InferScale
from llama_index.llms.inferscale.answers import ChatSoFar
from llama_index.llms.inferscale.messages import StringPrompt, is_string_template, to_engine
from llama_index.llms.inferscale.tools import tool_options

HANDLE = "⟦kv:abcdefghijkl⟧"
KV = {"injected": 0, "local_hit": 0, "prefilled": 3, "fallback_reason": None}


class SilentEngine:
    """Answers nothing; remembers what it was asked."""

    model = "silent"
    max_model_len = 512
    calls_tools = True

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        self.asked.append((messages, options))
        said = {"content": json.dumps({"name": "Rex"}) if "response_format" in options else ""}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return {"choices": [{"message": said, "finish_reason": "stop"}], "kv": KV, "recalled": [], "usage": usage}

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        return self.chat(messages, **options)

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        yield self.chat(messages, **options)

    async def astream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        yield self.chat(messages, **options)

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        self.asked.append((prompt, options))
        return {"choices": [{"text": ""}], "kv": KV, "recalled": []}

    async def acomplete(self, prompt: str, **options: Any) -> dict[str, Any]:
        return self.complete(prompt, **options)

    def stream_complete(self, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        yield self.complete(prompt, **options)

    async def astream_complete(self, prompt: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        yield self.complete(prompt, **options)

    def tokenize(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def count_tokens(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        return len(messages)


@pytest.fixture
def engine() -> SilentEngine:
    engine = SilentEngine()
    assert isinstance(engine, AnsweringEngine)
    return engine


def sent(*messages: ChatMessage) -> list[dict[str, Any]]:
    return to_engine(messages)[0]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_text_blocks_are_joined_and_what_is_not_said_is_left_out() -> None:
    citable = CitableBlock(title="t", source="s", content=[TextBlock(text="three")])
    cache = CachePoint(cache_control={"type": "ephemeral"})
    blocks = [TextBlock(text="one"), ThinkingBlock(content="hm"), TextBlock(text="two"), citable, cache]
    message = ChatMessage(blocks=blocks, additional_kwargs={"secret": HANDLE})
    assert sent(message) == [{"role": "user", "content": "one\ntwo\nthree"}]


@pytest.mark.parametrize("empty", [ChatMessage(), ChatMessage(""), ChatMessage(blocks=[])])
def test_a_message_without_content_has_none(empty: ChatMessage) -> None:
    assert sent(empty) == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("role", "wanted"),
    [("developer", "system"), ("chatbot", "assistant"), ("model", "assistant"), ("function", "tool")],
)
def test_every_role_has_its_place(role: str, wanted: str) -> None:
    assert sent(ChatMessage("x", role=MessageRole(role)))[0]["role"] == wanted


def test_an_image_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="the user message holds a ImageBlock; the engine's models read text"):
        sent(ChatMessage(blocks=[ImageBlock(url="http://example.org/a.png")]))


def test_calls_and_results_are_sent_in_openai_s_form() -> None:
    call = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"where": "東京"})
    wanted = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"where": "東京"}'}}]
    result = ChatMessage("found", role="tool", additional_kwargs={"tool_call_id": "1", "other": 2})
    assert sent(ChatMessage(role="assistant", blocks=[call]), result) == [
        {"role": "assistant", "content": "", "tool_calls": wanted},
        {"role": "tool", "content": "found", "tool_call_id": "1"},
    ]
    # As histories of other integrations have them.
    assert sent(ChatMessage(role="assistant", additional_kwargs={"tool_calls": wanted}))[0]["tool_calls"] == wanted


def test_only_string_prompts_give_up_their_handles() -> None:
    messages, handles = to_engine([StringPrompt.from_str(f"a {HANDLE} b"), ChatMessage(f"c {HANDLE}")])
    assert handles == [HANDLE]
    assert [message["content"] for message in messages] == ["a  b", f"c {HANDLE}"]


def test_a_message_that_came_as_json_is_no_string_prompt() -> None:
    said = StringPrompt.from_str(HANDLE).model_dump_json()
    assert to_engine([ChatMessage.model_validate_json(said)])[1] == []


def test_a_string_template_is_told_from_a_chat_template(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine)
    text, chat = PromptTemplate("{a}"), ChatPromptTemplate([ChatMessage("{a}")])
    selects = SelectorPromptTemplate(chat, conditionals=[(lambda llm: llm.metadata.is_chat_model, text)])
    rich, rich_chat = RichPromptTemplate("{{ a }}"), RichPromptTemplate('{% chat role="user" %}{{ a }}{% endchat %}')
    strings = [is_string_template(prompt, llm) for prompt in (text, chat, selects, rich, rich_chat)]
    assert strings == [True, False, True, True, False]


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_call_s_keywords_go_before_additional_kwargs_and_those_before_the_fields(engine: SilentEngine) -> None:
    llm = InferScale(
        engine=engine, temperature=0.5, top_p=0.9, stop="END", seed=1, user_id="alice", additional_kwargs={"top_p": 0.8}
    )
    llm.chat([ChatMessage("Hello")], temperature=0.1, user_id="bob", kv_handles=[HANDLE, HANDLE], max_tokens=None)
    [(_, options)] = engine.asked
    assert options == {
        "temperature": 0.1,
        "top_p": 0.8,
        "stop": ["END"],
        "seed": 1,
        "user_id": "bob",
        "kv_handles": [HANDLE],
    }


def test_a_system_prompt_stands_before_a_template_s_messages(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine, system_prompt=f"Be brief. {HANDLE}")
    llm.predict(PromptTemplate("{x}"), x=HANDLE)
    [(messages, options)] = engine.asked
    assert messages == [
        {"role": "system", "content": f"Be brief. {HANDLE}"},
        {"role": "user", "content": ""},
    ]
    assert options["kv_handles"] == [HANDLE]


class Pet(BaseModel):
    name: str


async def test_a_system_prompt_stands_once_before_a_structured_prediction(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine, system_prompt="Be brief.")
    prompt = PromptTemplate("{x}")
    llm.structured_predict(Pet, prompt, x=HANDLE)
    await llm.astructured_predict(Pet, prompt, x=HANDLE)
    llm.as_structured_llm(Pet).predict(prompt, x=HANDLE)
    await llm.as_structured_llm(Pet).acomplete(HANDLE)
    assert list(llm.stream_structured_predict(Pet, prompt, x=HANDLE))[-1] == Pet(name="Rex")
    *_, last = [one async for one in await llm.astream_structured_predict(Pet, prompt, x=HANDLE)]
    assert last == Pet(name="Rex")
    for messages, options in engine.asked:
        assert [message["content"] for message in messages] == ["Be brief.", ""]
        assert options["kv_handles"] == [HANDLE]
        assert options["response_format"]["json_schema"]["schema"] == Pet.model_json_schema()


def test_preparing_a_call_leaves_the_history_alone(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine)
    history = [ChatMessage("a"), ChatMessage("b", role="assistant")]
    prepared = llm._prepare_chat_with_tools([], user_msg="c", chat_history=history)
    assert [message.content for message in prepared["messages"]] == ["a", "b", "c"]
    assert len(history) == 2
    assert prepared.keys() == {"messages"}


def tool(name: str) -> FunctionTool:
    return FunctionTool.from_defaults(lambda x: x, name=name, description="x " * 600)


def test_a_tool_choice_is_openai_s() -> None:
    one = {"type": "function", "function": {"name": "one"}}
    for choice, wanted in (("any", "required"), ("auto", "auto"), ("none", "none"), ("one", one), (one, one)):
        assert tool_options([tool("one")], choice=choice)["tool_choice"] == wanted
    assert tool_options([tool("one")], required=True)["tools"][0]["function"]["strict"] is True
    assert "strict" not in tool_options([tool("one")])["tools"][0]["function"]
    with pytest.raises(InvalidInputError, match="tool_choice is 'two'; wanted auto, required, none, or a tool: one"):
        tool_options([tool("one")], choice="two")
    with pytest.raises(InvalidInputError, match="there are no tools to call"):
        tool_options([], required=True)


# -- answers -----------------------------------------------------------------------------------------------------------


def chunk(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": list(calls)}}], **more}


def piece(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": f"id{index}" if name else None, "function": {"name": name, "arguments": arguments}}


def test_interleaved_pieces_of_two_calls_come_together(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine)
    answer = ChatSoFar()
    seen: list[ChatResponse] = [
        answer.add(chunk(piece(0, "", "one"))),
        answer.add(chunk(piece(0, '{"a": '), piece(1, '{"b"', "two"))),
        answer.add(chunk(piece(1, ": 2}"), piece(0, "1}"))),
        answer.add({"choices": [], "kv": KV, "recalled": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
    ]
    calls = [[(c.tool_name, c.tool_kwargs) for c in llm.get_tool_calls_from_response(response)] for response in seen]
    assert calls[0] == [("one", {})]
    assert calls[-1] == [("one", {"a": 1}), ("two", {"b": 2})]
    assert seen[0].message.additional_kwargs["tool_calls"][0]["function"]["arguments"] == ""
    assert seen[-1].additional_kwargs["total_tokens"] == 5


@pytest.mark.parametrize(
    ("arguments", "finish", "match"),
    [
        ('{"a": 1}', "length", "the answer was cut at 2 tokens, while it called 'one'"),
        ('{"a": 1', "stop", "the call of 'one' has '{\"a\": 1' for arguments; wanted a JSON object"),
        ("[1]", "stop", r"the call of 'one' has '\[1\]' for arguments; wanted a JSON object"),
    ],
)
def test_a_call_with_half_of_its_arguments_is_refused(
    engine: SilentEngine, arguments: str, finish: str, match: str
) -> None:
    answer = ChatSoFar()
    answer.add(chunk(piece(0, arguments, "one")))
    answer.add({"choices": [{"delta": {}, "finish_reason": finish}]})
    ended = answer.add({"choices": [], "kv": KV, "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    with pytest.raises(InvalidInputError, match=match):
        InferScale(engine=engine).get_tool_calls_from_response(ended, error_on_no_tool_call=False)


def test_a_call_without_arguments_has_none(engine: SilentEngine) -> None:
    answer = ChatSoFar()
    answer.add(chunk(piece(0, "", "one")))
    answer.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    [call] = InferScale(engine=engine).get_tool_calls_from_response(answer.add({"choices": [], "kv": KV}))
    assert call.tool_kwargs == {}


def test_no_call_is_an_error_only_where_one_is_wanted(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine)
    response = llm.chat([ChatMessage("Hello")])
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(InvalidInputError, match="the answer calls no tool"):
        llm.get_tool_calls_from_response(response)


def test_what_a_model_thought_is_kept_apart() -> None:
    answer = ChatSoFar()
    thinking = answer.add({"choices": [{"delta": {"reasoning": "hm"}}]})
    said = answer.add({"choices": [{"delta": {"content": "Rex"}}], "kv": KV})
    assert thinking.additional_kwargs["thinking_delta"] == "hm"
    assert "thinking_delta" not in said.additional_kwargs
    assert said.message.content == "Rex"
    assert said.message.blocks[0] == ThinkingBlock(content="hm")


# -- construction ------------------------------------------------------------------------------------------------------


def test_what_is_no_engine_and_an_unknown_field_are_refused(engine: SilentEngine) -> None:
    with pytest.raises(ValueError, match="engine is a str; wanted a running one, such as LocalEngine"):
        InferScale(engine="demo")
    with pytest.raises(ValueError, match="temprature"):
        InferScale(engine=engine, temprature=0)
    with pytest.raises(ValueError, match="greater than 0"):
        InferScale(engine=engine, max_tokens=0)


def test_the_metadata_is_the_engine_s(engine: SilentEngine) -> None:
    said = InferScale(engine=engine, max_tokens=7).metadata
    assert (said.context_window, said.num_output, said.model_name) == (512, 7, "silent")
    assert said.is_chat_model
    assert said.is_function_calling_model
    assert InferScale(engine=engine, max_tokens=9000).metadata.num_output == 512
    engine.calls_tools = False
    assert not InferScale(engine=engine).metadata.is_function_calling_model


def test_llama_index_counts_with_the_model_s_tokenizer(engine: SilentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_index.core.utils import get_tokenizer

    monkeypatch.setattr("llama_index.core.global_tokenizer", None)
    Settings.tokenizer = InferScale(engine=engine).tokenizer
    assert get_tokenizer()("three short words") == [5, 5, 5]


def test_llama_index_s_token_counter_is_told_the_engine_s_counts(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine)
    counter = TokenCountingHandler(tokenizer=llm.tokenizer)
    llm.callback_manager = CallbackManager([counter])
    llm.chat([ChatMessage("one two three four")])
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (3, 2)


def test_nothing_of_the_engine_is_serialised(engine: SilentEngine) -> None:
    llm = InferScale(engine=engine, temperature=0.5)
    assert "engine" not in llm.to_dict()
    assert llm.to_dict()["class_name"] == "inferscale_llm"
    assert InferScale.from_dict(llm.to_dict(), engine=engine).temperature == 0.5
    assert "SilentEngine" not in repr(llm)
