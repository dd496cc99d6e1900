"""Chat and completion as OpenAI clients know them: streams, async forms, tools, formats, stop strings."""

from __future__ import annotations

import asyncio
import json

import pytest
from asking import FACTS, QUESTION, ask, remember, text_of

GREEDY = {"max_tokens": 12, "temperature": 0}


@pytest.fixture
def messages(memory_for, user):
    """A question about a dog, with the handle that knows its name."""
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return ask(memory.recall(QUESTION, 4, user_id=user))


def prompt_of(messages):
    return f"{messages[0]['content']}\nThe dog of Alice is called"


def figures(kv):
    """What a request reports, whether its prompt was injected or found from the request before."""
    return kv["injected"] + kv["local_hit"], kv["prefilled"], kv["fallback_reason"]


def joined(chunks):
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_a_stream_says_what_the_whole_answer_says(engine, messages):
    whole = engine.chat(messages, **GREEDY)
    chunks = list(engine.stream_chat(messages, **GREEDY))
    assert len(chunks) > 3
    assert joined(chunks) == text_of(whole)
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert figures(chunks[-1]["kv"]) == figures(whole["kv"])
    assert whole["kv"]["injected"] > 0
    assert all("kv" not in chunk for chunk in chunks[:-1])


def test_the_async_forms_answer_as_the_sync_ones_do(engine, messages):
    async def ask_twice():
        return await engine.achat(messages, **GREEDY), [
            chunk async for chunk in engine.astream_chat(messages, **GREEDY)
        ]

    answer, chunks = asyncio.run(ask_twice())
    assert text_of(answer) == joined(chunks) == text_of(engine.chat(messages, **GREEDY))
    assert figures(answer["kv"]) == figures(chunks[-1]["kv"])
    assert answer["kv"]["injected"] > 0


def test_a_completion_prompt_may_hold_a_handle(engine, messages):
    answer = engine.complete(prompt_of(messages), **GREEDY)
    assert "Rex" in answer["choices"][0]["text"]
    assert answer["kv"]["injected"] > 0
    assert answer["kv"]["fallback_reason"] is None
    chunks = list(engine.stream_complete(prompt_of(messages), **GREEDY))
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == answer["choices"][0]["text"]
    assert figures(chunks[-1]["kv"]) == figures(answer["kv"])


def test_a_completion_prompt_without_a_handle_is_left_alone(engine, messages):
    answer = engine.complete("The capital of France is", **GREEDY)
    assert "Paris" in answer["choices"][0]["text"]
    assert answer["kv"]["injected"] == 0


def test_stop_strings_end_an_answer_beside_a_handle(engine, messages):
    whole = text_of(engine.chat(messages, **GREEDY))
    word = whole.split()[1]
    answer = engine.chat(messages, stop=[word], **GREEDY)
    assert text_of(answer) == whole.split(word)[0]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_response_format_is_followed_beside_a_handle(engine, messages):
    schema = {"type": "object", "properties": {"dog": {"type": "string", "maxLength": 8}}, "required": ["dog"]}
    shape = {"type": "json_schema", "json_schema": {"name": "dog", "schema": schema}}
    answer = engine.chat(messages, response_format=shape, max_tokens=40, temperature=0)
    assert set(json.loads(text_of(answer))) >= {"dog"}
    assert answer["kv"]["injected"] > 0


def test_a_named_tool_is_called_beside_a_handle(engine, messages):
    parameters = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
    # Without strict vLLM holds a call to its name only, and leaves the arguments to the model.
    function = {"name": "call_dog", "description": "Calls.", "strict": True, "parameters": parameters}
    tool = {"type": "function", "function": function}
    chosen = {"type": "function", "function": {"name": "call_dog"}}
    answer = engine.chat(messages, tools=[tool], tool_choice=chosen, max_tokens=80, temperature=0)
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "call_dog"
    assert set(json.loads(call["arguments"])) == {"name"}
    assert answer["kv"]["injected"] > 0


def test_several_choices_of_one_request_are_accounted_for(engine, messages):
    answer = engine.chat(messages, n=2, max_tokens=2, temperature=1.0, seed=1)
    assert len(answer["choices"]) == 2
    kv = answer["kv"]
    assert kv["injected"] + kv["local_hit"] + kv["prefilled"] == answer["usage"]["prompt_tokens"]
    assert kv["injected"] > 0


def test_handles_may_come_beside_the_messages(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, user_id=user)
    answer = engine.chat([{"role": "user", "content": QUESTION}], kv_handles=[handle], **GREEDY)
    assert "Rex" in text_of(answer)
    assert answer["kv"]["injected"] > 0


def test_the_callers_messages_and_options_are_not_changed(engine, messages):
    before = json.dumps(messages)
    options = {"stop": ["."], "max_tokens": 1}
    engine.chat(messages, **options)
    assert json.dumps(messages) == before
    assert options == {"stop": ["."], "max_tokens": 1}
