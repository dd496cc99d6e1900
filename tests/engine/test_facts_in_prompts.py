"""Refreshed facts, merged handles, merged system messages, and prompts that would grow too long."""

from __future__ import annotations

import logging

from asking import FACTS, QUESTION, ask, distance, remember, run, text_of, travels

from inferscale_memory import metrics
from inferscale_memory.serving.resolve import Plan


def prompt_text(engine, plan):
    return engine.tokenizer.decode(plan.token_ids)


def test_refreshing_every_fact_is_plain_prompt_injection(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, refresh=4, user_id=user)
    lines = "".join(f"- {hit.fact.text}\n" for hit in reversed(handle.facts))
    by_hand = engine.tokenizer.apply_chat_template(
        ask(f"\n\nFacts about the user:\n{lines}"), tokenize=False, add_generation_prompt=True
    )
    plan = engine.plan(ask(handle))
    assert not plan.inject
    # The text is the same as an application would have written it; only tokens at the seams may differ.
    assert prompt_text(engine, plan).split() == by_hand.split()

    refreshed = run(engine, plan)
    assert engine.accounting(refreshed).injected == 0
    assert distance(refreshed, run(engine, Plan(token_ids=plan.token_ids))) == 0.0
    answer = engine.chat(ask(handle), max_tokens=12, temperature=0)
    assert answer["kv"]["injected"] == 0
    assert "Rex" in text_of(answer)


def test_refreshed_facts_stand_as_text_behind_the_injected_ones(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, refresh=1, user_id=user)
    plan = engine.plan(ask(handle))
    best = list(engine.prompt.fact_tokens(handle.facts[0].fact.text))
    assert len(plan.inject) == 4
    end = plan.inject[-1].end
    assert plan.token_ids[end : end + len(best)] == best
    kv = engine.chat(ask(handle), max_tokens=1)["kv"]
    assert (kv["injected"], kv["fallback_reason"]) == (end, None)


def test_refreshed_and_injected_facts_share_no_native_blocks_with_plain_prefill(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, travels(6), user)
    injecting = engine.plan(ask(memory.recall("Rome", 6, refresh=0, user_id=user)))
    prefilling = engine.plan(ask(memory.recall("Rome", 6, refresh=6, user_id=user)))
    assert injecting.salt != prefilling.salt
    run(engine, injecting)
    assert engine.accounting(run(engine, prefilling)).local_hit == 0


def test_the_facts_of_several_handles_are_merged_and_stand_once(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    one = memory.recall(QUESTION, 2, user_id=user)
    other = memory.recall("Where was Alice born and when did she move to Oslo?", 3, user_id=user)
    wanted = {hit.fact.text for hit in (*one.facts, *other.facts)}
    assert len(wanted) < 5, "the handles must overlap for this test to say anything"
    plan = engine.plan(ask(f"{one} and {other}"))
    text = prompt_text(engine, plan)
    assert [text.count(fact) for fact in wanted] == [1] * len(wanted)
    assert len(plan.inject) == 1 + len(wanted)
    kv = engine.chat(ask(f"{one} and {other}"), max_tokens=1)["kv"]
    assert kv["injected"] + kv["local_hit"] == plan.inject[-1].end


def test_handles_of_two_users_share_a_salt_of_their_own(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS[:2], user)
    remember(memory, FACTS[2:], f"{user}-2")
    handles = [memory.recall(QUESTION, 2, user_id=name) for name in (user, f"{user}-2")]
    salts = {engine.plan(ask(handle)).salt for handle in [*handles, " ".join(handles)]}
    assert len(salts) == 3


def test_consecutive_system_messages_become_one_that_holds_the_facts(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, FACTS, user)
    handle = memory.recall(QUESTION, 4, user_id=user)
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "system", "content": f"Answer in one word. {handle}"},
        {"role": "user", "content": QUESTION},
    ]
    plan = engine.plan(messages)
    text = prompt_text(engine, plan)
    assert text.count("<|im_start|>system") == 1
    assert "helpful assistant" in text
    assert "one word" in text
    assert engine.chat(messages, max_tokens=1)["kv"]["injected"] == plan.inject[-1].end


def test_messages_without_a_handle_go_through_untouched(engine, memory_for, user):
    memory_for(policy="preamble")
    messages = [{"role": "system", "content": "  Be terse.  "}, {"role": "user", "content": "Hello."}]
    ids = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answer = engine.chat(messages, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["kv"]["fallback_reason"] is None


def test_least_relevant_facts_are_left_out_of_a_prompt_that_would_not_fit(engine, memory_for, user, caplog):
    memory = memory_for(policy="preamble")
    # Of words of their own: what is alike would share one slot of the recall.
    long = [f"{fact} {' '.join(f'w{i}-{j}' for j in range(70))}" for i, fact in enumerate(travels(8))]
    assert sum(len(engine.prompt.fact_tokens(fact)) for fact in long) > engine.max_model_len
    remember(memory, long, user)
    question = "Who visited Rome in 1950?"
    handle = memory.recall(question, 8, refresh=0, user_id=user)
    dropped = metrics.FACTS_DROPPED._value.get()
    with caplog.at_level(logging.WARNING):
        plan = engine.plan(ask(handle, question), max_tokens=64)
    worst_first = [hit.fact.id for hit in reversed(handle.facts)]
    assert 0 < len(plan.dropped) < 8
    assert list(plan.dropped) == worst_first[: len(plan.dropped)]
    assert metrics.FACTS_DROPPED._value.get() == dropped + len(plan.dropped)
    assert [record.message for record in caplog.records if "do not fit the model's length" in record.message]
    assert len(plan.token_ids) + 64 <= engine.max_model_len
    answer = engine.chat(ask(handle, question), max_tokens=64, min_tokens=64, ignore_eos=True, temperature=0)
    assert answer["usage"]["completion_tokens"] == 64
    assert answer["kv"]["injected"] == plan.inject[-1].end
