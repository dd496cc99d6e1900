"""A load fails, and the request is gone before its prompt is recomputed: nothing of it may be served to others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from asking import QUESTION, ask, distance, eventually, file_of, key_of, remember, run, travels
from vllm.distributed.kv_transfer import get_kv_transfer_group

from inferscale_memory import LocalEngine


@pytest.fixture(scope="module")
def slow(demo_model, tmp_path_factory):
    """Native prefix caching on, and steps so small that recomputing a prompt takes many."""
    options = {"max_model_len": 1024, "max_num_batched_tokens": 32, "max_num_seqs": 8, "enable_prefix_caching": True}
    with LocalEngine(demo_model, home=tmp_path_factory.mktemp("slow-home"), in_process=True, **options) as engine:
        assert engine.unsupported is None, engine.unsupported
        yield engine


def test_blocks_of_a_failed_load_do_not_stay_in_the_native_prefix_cache(slow, open_memory, user, monkeypatch):
    memory = open_memory(slow, policy="preamble")
    remember(memory, travels(16), user)
    plan = slow.plan(ask(memory.recall(QUESTION, 16, user_id=user)))
    assert len(plan.token_ids) > 2 * slow.block_size
    run(slow, plan, salt=f"warm {user}")  # the preamble is there, so that the next load begins at 0
    worker = get_kv_transfer_group()._worker
    lost = next(fact.id for fact in memory.list(user_id=user).facts if key_of(memory, fact.id) == plan.inject[1].key)
    path = file_of(memory, lost)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    worker.loader.forget([plan.inject[1].key])

    failed = []
    take = worker.take_bad_blocks

    def taken():
        bad = take()
        failed.extend(bad)
        return bad

    monkeypatch.setattr(worker, "take_bad_blocks", taken)

    async def abort_after_the_failure():
        request = asyncio.ensure_future(slow.agenerate(plan))
        await asyncio.to_thread(eventually, lambda: bool(failed))
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request

    asyncio.run(abort_after_the_failure())
    eventually(lambda: not slow.client.engine_core.engine_core.scheduler.requests)
    after = run(slow, plan, inject=False)  # the salt of the request that was aborted
    cold = run(slow, plan, inject=False, salt=f"cold {user}")
    assert distance(after, cold) == 0.0
