"""An engine with little of everything: chunked prefill, preemption, failing loads. In process, to look inside.

A step takes 64 tokens and the pool has 5 usable blocks, so that prompts arrive over several steps and requests push
each other out. Native prefix caching is off: what a resumed request does not compute was injected again.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from asking import QUESTION, ask, distance, eventually, file_of, key_of, remember, run, run_together, travels
from vllm.distributed.kv_transfer import get_kv_transfer_group

from inferscale_memory import LocalEngine
from inferscale_memory.serving.protocol import CaptureSpan

STEP = 64
DOGS = ("Rex", "Bella", "Max", "Luna")


@pytest.fixture(scope="module")
def tight(demo_model, tmp_path_factory):
    home = tmp_path_factory.mktemp("tight-home")
    options = {
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": STEP,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 6,
        "host_cache": "32MiB",
    }
    with LocalEngine(demo_model, home=home, in_process=True, **options) as engine:
        assert engine.unsupported is None, engine.unsupported
        yield engine


@pytest.fixture
def worker(tight):
    """The worker side of the connector."""
    return get_kv_transfer_group()._worker


@pytest.fixture
def steps(worker, monkeypatch):
    """What the workers were told in each step."""
    seen = []
    begin = worker.begin

    def recording(metadata):
        seen.append(metadata)
        begin(metadata)

    monkeypatch.setattr(worker, "begin", recording)
    return seen


@pytest.fixture
def preempted(tight, monkeypatch):
    """Ids of preempted requests, once for each time."""
    seen = []
    scheduler = tight.client.engine_core.engine_core.scheduler
    preempt = scheduler._preempt_request

    def recording(request, *arguments, **named):
        seen.append(request.request_id)
        preempt(request, *arguments, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", recording)
    return seen


def long_fact(number):
    return f"{travels(1, first=number)[0]} " + f"After that came day {number} of the long journey home. " * 12


def test_a_fact_that_is_computed_over_several_steps_is_captured_whole(tight, open_memory, user, steps):
    memory = open_memory(tight, policy="preamble")
    facts = [long_fact(number) for number in range(3)]
    ids = remember(memory, facts, user)
    pieces = Counter(piece.key for metadata in steps for piece in metadata.captures)
    for fact, text in zip(ids, facts, strict=True):
        chunk = memory.chunks.get(key_of(memory, fact), tight.fingerprint)
        assert chunk.token_ids == tight.prompt.fact_tokens(text)
        assert chunk.keys.shape[1] == chunk.values.shape[1] == len(chunk.token_ids) > 2 * STEP
        assert pieces[chunk.key] > 2


def test_chunked_prefill_injects_what_chunked_prefill_computes(tight, open_memory, user):
    memory = open_memory(tight, policy="prefix")
    remember(memory, [long_fact(0), *travels(5, first=1)], user)
    plan = tight.plan(ask(memory.recall("Rome", 6, refresh=0, user_id=user)))
    assert len(plan.token_ids) > 4 * STEP
    injected, cold = run(tight, plan), run(tight, plan, inject=False)
    assert tight.accounting(injected).injected == plan.inject[-1].end
    assert distance(injected, cold) == 0.0


def test_chunks_made_for_one_prompt_leave_the_workers_memory_when_a_fact_is_deleted(tight, open_memory, user, worker):
    memory = open_memory(tight, policy="prefix")
    ids = remember(memory, travels(3), user)
    plan = tight.plan(ask(memory.recall("Rome", 3, user_id=user)))
    run(tight, plan)
    preamble, *facts = [span.key for span in plan.inject]
    assert all(key in worker.loader.arena for key in (preamble, *facts))
    memory.delete(ids[0], user_id=user)
    assert not any(key in worker.loader.arena for key in facts)
    assert preamble in worker.loader.arena, "it holds nobody's facts"
    again = run(tight, tight.plan(ask(memory.recall("Rome", 3, user_id=user))))
    assert tight.accounting(again).fallback_reason is None
    worker.loader.arena.check_integrity()


def padded_plan(engine, handle, tokens):
    plans = (engine.plan(ask(handle, system="so " * words)) for words in range(tokens))
    return next(plan for plan in plans if len(plan.token_ids) >= tokens)


@pytest.mark.parametrize("policy", ["preamble", "prefix"])
def test_a_preempted_request_is_injected_again_and_says_the_same(tight, open_memory, user, preempted, steps, policy):
    memory = open_memory(tight, policy=policy)
    plans = []
    for number in range(len(DOGS)):
        name = f"{user}-{number}"
        facts = [*travels(2, first=number), f"The dog of the user is called {DOGS[number]}."]
        remember(memory, facts, name)
        # Each prompt fills its only block but for a few tokens; soon all want a second one.
        plans.append(padded_plan(tight, memory.recall(QUESTION, 3, user_id=name), tight.block_size - 4))
    options = {"max_tokens": 8, "ignore_eos": True, "logprobs": None, "flat_logprobs": False}
    alone = [run(tight, plan, **options) for plan in plans]
    assert len({tuple(output.outputs[0].token_ids) for output in alone}) == len(DOGS), "swaps would not be noticed"
    assert not preempted
    steps.clear()

    crowd = run_together(tight, plans, [plan.salt for plan in plans], **options)

    loads = Counter(load.request_id for metadata in steps for load in metadata.loads)
    assert preempted, "the pool was not small enough"
    assert any(loads[request] > 1 for request in preempted), "no resumed request was injected again"
    for one, other in zip(alone, crowd, strict=True):
        assert other.outputs[0].token_ids == one.outputs[0].token_ids
        assert tight.accounting(other) == tight.accounting(one)


def test_a_capture_that_is_cancelled_half_way_leaves_nothing_behind(tight, worker, steps):
    tokens = [(7919 * index + 13) % 4096 for index in range(400)]
    key = f"{1:064x}"

    async def leave_early():
        task = asyncio.ensure_future(tight.capture(tokens, [CaptureSpan(key, 100, 400)], salt="cancelled"))
        while not worker._staging:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave_early())
    tight.follow_deletions()  # one more step, which hears of the abort
    assert not worker._staging
    assert key not in worker.loader.arena
    result = asyncio.run(tight.capture(tokens, [CaptureSpan(key, 100, 400)], salt="again"))
    assert result.stored == {key}


@pytest.mark.parametrize("place", ["in the first block", "in a later block"])
def test_a_load_that_fails_is_recomputed_from_the_block_it_failed_in(tight, open_memory, user, worker, place):
    memory = open_memory(tight, policy="preamble")
    remember(memory, travels(8), user)
    handle = memory.recall("Rome", 8, refresh=0, user_id=user)
    plan = tight.plan(ask(handle))
    before = run(tight, plan)
    lost = handle.facts[-1 if place == "in the first block" else 0].fact.id
    # The scheduler has just seen the file: it learns of the loss from the worker only.
    file_of(memory, lost).unlink()
    worker.loader.forget([key_of(memory, lost)])

    output = run(tight, plan)
    accounting = tight.accounting(output)
    assert accounting.fallback_reason == "chunk_unreadable"
    assert accounting.injected == (0 if place == "in the first block" else tight.block_size)
    assert accounting.injected + accounting.prefilled == len(plan.token_ids)
    plain = run(tight, plan, inject=False)
    if place == "in the first block":
        assert distance(output, plain) == 0.0
    assert distance(before, plain) > 0.0, "the comparison cannot fail"


def test_facts_come_from_the_arena_or_host_memory_or_disk_and_say_the_same(tight, open_memory, user):
    memory = open_memory(tight, policy="preamble")
    remember(memory, travels(6), user)
    plan = tight.plan(ask(memory.recall("Rome", 6, refresh=0, user_id=user)))
    facts = plan.inject[-1].end - plan.inject[0].end
    run(tight, plan)  # puts the preamble there
    preamble = plan.inject[0].end
    outputs, loaded = [], []
    for tier in (None, "arena", "memory", None):
        if tier is not None:
            tight.drop_chunks(tier)
        before = tight.loaded_tokens()
        outputs.append(run(tight, plan))
        loaded.append(tight.loaded_tokens().since(before))
    everything, nothing = preamble + facts, 0
    assert loaded[0] == loaded[3] == (everything, nothing, nothing)
    assert loaded[1] == (preamble, facts, nothing)
    assert loaded[2] == (preamble, nothing, facts)
    assert all(tight.accounting(output) == tight.accounting(outputs[0]) for output in outputs)
    assert [distance(output, outputs[0]) for output in outputs] == [0.0] * 4


def test_chunks_asked_for_ahead_are_in_the_arena_when_the_question_comes(tight, open_memory, user, worker):
    memory = open_memory(tight, policy="preamble")
    remember(memory, travels(6), user)
    plan = tight.plan(ask(memory.recall("Rome", 6, refresh=0, user_id=user)))
    run(tight, plan)
    keys = [span.key for span in plan.inject[1:]]
    tight.drop_chunks("memory")
    assert not any(key in worker.loader.arena for key in keys)
    tight.prefetch(keys)
    eventually(lambda: all(key in worker.loader.arena for key in keys))
    before = tight.loaded_tokens()
    run(tight, plan)
    assert tight.loaded_tokens().since(before) == (plan.inject[-1].end, 0, 0)


def test_a_recall_has_its_chunks_fetched(tight, open_memory, user, worker):
    memory = open_memory(tight, policy="preamble")
    ids = remember(memory, travels(6), user)
    keys = [key_of(memory, fact_id) for fact_id in ids]
    tight.drop_chunks("memory")
    assert not any(key in worker.loader.arena for key in keys)
    memory.recall("Rome", 6, refresh=0, user_id=user)
    eventually(lambda: all(key in worker.loader.arena for key in keys))


def test_the_scheduler_asks_the_disk_once_for_each_chunk_however_often_it_is_used(
    tight, open_memory, user, monkeypatch
):
    memory = open_memory(tight, policy="preamble")
    remember(memory, travels(6), user)
    plan = tight.plan(ask(memory.recall("Rome", 6, refresh=0, user_id=user)))
    scheduler = tight.client.engine_core.engine_core.scheduler.connector._scheduler
    asked = []
    exists = scheduler.store.exists
    monkeypatch.setattr(scheduler.store, "exists", lambda key, model: asked.append(key) or exists(key, model))
    for _ in range(3):
        run(tight, plan)
    assert sorted(asked) == sorted(span.key for span in plan.inject[1:])


def test_after_everything_the_books_of_the_workers_memory_are_right(tight, worker):
    worker.loader.arena.check_integrity()
    assert not worker._staging
    assert tight.client.engine_core.engine_core.scheduler.connector._scheduler._states == {}
