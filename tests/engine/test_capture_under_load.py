"""Encoding goes on while questions are answered, and makes the chunks that it makes alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from asking import FACTS, FLUSH, QUESTION, ask, key_of, remember, text_of, travels

from inferscale_memory import metrics
from inferscale_memory.encoding.policies import build_request
from inferscale_memory.serving.protocol import CaptureSpan


def encoded_alone(engine, memory, fact, key):
    """The fact's chunk once more, with nothing beside it."""
    items = memory.policy.context(fact, memory.store)
    request = build_request(engine.prompt, memory.policy, fact, items, engine.max_model_len)
    result = asyncio.run(
        engine.capture(request.token_ids, [CaptureSpan(key, request.start, request.end)], salt=f"alone {key}"[:64])
    )
    assert result.stored == {key}
    return memory.chunks.get(key, engine.fingerprint)


def test_16_facts_are_encoded_whole_while_8_chats_run(engine, memory_for, user):
    memory = memory_for(policy="preceding:2:fact")
    remember(memory, FACTS, user)
    messages = ask(memory.recall(QUESTION, 4, user_id=user))
    wanted = text_of(engine.chat(messages, max_tokens=24, temperature=0))
    mismatches = metrics.CAPTURE_MISMATCHES._value.get()

    with ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(engine.chat, messages, max_tokens=24, temperature=0) for _ in range(8)]
        result = memory.add(travels(16), user_id=user)
        report = memory.flush(FLUSH, user_id=user)
        answers = [chat.result() for chat in chats]

    assert report.parked == ()
    assert metrics.CAPTURE_MISMATCHES._value.get() == mismatches
    assert [text_of(answer) for answer in answers] == [wanted] * 8
    for fact in result.facts:
        chunk = memory.chunks.get(key_of(memory, fact.id), engine.fingerprint)
        assert chunk.token_ids == engine.prompt.fact_tokens(fact.text)
    for number, fact in enumerate(result.facts[::4]):
        loaded = memory.chunks.get(key_of(memory, fact.id), engine.fingerprint)
        alone = encoded_alone(engine, memory, fact, f"{number:064x}")
        assert torch.equal(alone.keys, loaded.keys)
        assert torch.equal(alone.values, loaded.values)
