"""The actual system prompt is a chunk of its own: captured once, whatever stands in it."""

from __future__ import annotations

import asyncio

import pytest
from asking import FACTS, QUESTION, ask, remember

from inferscale_memory import metrics
from inferscale_memory.errors import EncodingError
from inferscale_memory.serving.protocol import parse_params


@pytest.fixture
def captures(engine, monkeypatch):
    """Prompts of the capture requests that are sent."""
    sent = []
    send = engine.capturer._send

    async def recording(token_ids, params, salt):
        if parse_params(params, len(token_ids)).capture:
            sent.append(tuple(token_ids))
        await send(token_ids, params, salt)

    monkeypatch.setattr(engine.capturer, "_send", recording)
    return sent


def test_a_new_timestamp_in_every_system_prompt_still_injects_every_fact(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, user_id=user)
    encoded = metrics.ENCODED._value.get()
    facts = sum(len(engine.prompt.fact_tokens(fact)) for fact in FACTS)
    for second in range(4):
        messages = ask(handle, system=f"You help {user}. It is 2026-11-29T12:00:0{second}.")
        preamble = engine.plan(messages).inject[0].end
        kv = engine.chat(messages, max_tokens=1)["kv"]
        assert kv["injected"] + kv["local_hit"] == preamble + facts
        assert kv["injected"] > 0
        assert kv["fallback_reason"] is None
    assert metrics.ENCODED._value.get() == encoded, "no fact may be encoded again for another system prompt"


def test_two_calls_at_once_with_the_same_new_system_prompt_send_one_capture(engine, memory_for, user, captures):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    captures.clear()
    messages = ask(memory.recall(QUESTION, 4, user_id=user), system=f"You speak with {user}.")

    async def twice():
        return await asyncio.gather(*(engine.achat(messages, max_tokens=1) for _ in range(2)))

    answers = asyncio.run(twice())
    assert [answer["kv"]["fallback_reason"] for answer in answers] == [None, None]
    assert len(captures) == 1
    engine.chat(messages, max_tokens=1)
    assert len(captures) == 1


def test_a_preamble_that_cannot_be_captured_costs_a_prefill_and_is_tried_again(engine, memory_for, user, monkeypatch):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[3:], user)
    messages = ask(memory.recall(QUESTION, 1, user_id=user), system=f"You answer {user} at once.")
    send = engine.capturer._send
    failures = iter([EncodingError("this prompt is refused")])

    async def failing(*arguments):
        for error in failures:
            raise error
        await send(*arguments)

    monkeypatch.setattr(engine.capturer, "_send", failing)
    first, second = (engine.chat(messages, max_tokens=1)["kv"] for _ in range(2))
    assert (first["injected"], first["fallback_reason"]) == (0, "preamble_missing")
    assert (second["injected"], second["fallback_reason"]) == (engine.plan(messages).inject[-1].end, None)
