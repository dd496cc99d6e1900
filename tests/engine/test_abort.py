"""A caller that goes away in mid-stream takes its request along, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from asking import FACTS, QUESTION, ask, eventually, remember, run, text_of

LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def messages(memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    return ask(memory.recall(QUESTION, 4, user_id=user))


def requests_of(engine):
    return len(engine.client.output_processor.request_states)


def test_closing_a_stream_early_ends_its_request_and_the_next_answer_is_right(engine, messages):
    wanted = text_of(engine.chat(messages, max_tokens=12, temperature=0))
    stream = engine.stream_chat(messages, **LONG)
    next(stream)
    next(stream)
    assert requests_of(engine) == 1
    stream.close()
    eventually(lambda: requests_of(engine) == 0)
    answer = engine.chat(messages, max_tokens=12, temperature=0)
    assert text_of(answer) == wanted
    assert answer["kv"]["injected"] > 0


def test_cancelling_an_async_stream_or_call_ends_its_request(engine, messages):
    async def leave_early():
        async with aclosing(engine.astream_chat(messages, **LONG)) as stream:
            async for _ in stream:
                break
        task = asyncio.ensure_future(engine.achat(messages, **LONG))
        while not requests_of(engine):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave_early())
    eventually(lambda: requests_of(engine) == 0)


def test_a_neighbours_answer_is_not_touched_by_an_abort(engine, messages, user):
    plan = engine.plan(messages)
    wanted = run(engine, plan, salt=f"alone {user}", max_tokens=8).outputs[0].token_ids
    stream = engine.stream_chat(messages, **LONG)
    next(stream)

    async def beside():
        job = asyncio.ensure_future(engine.agenerate(plan, salt=f"beside {user}", max_tokens=8, detokenize=False))
        await asyncio.to_thread(stream.close)
        return await job

    assert asyncio.run(beside()).outputs[0].token_ids == wanted
