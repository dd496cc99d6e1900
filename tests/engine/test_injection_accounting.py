"""Where the tokens of a prompt come from, and who may share them."""

from __future__ import annotations

import pytest
from asking import FACTS, QUESTION, ask, distance, remember, run, text_of, travels

from inferscale_memory.scope import Scope
from inferscale_memory.serving.resolve import Plan


def prompt_tokens(answer):
    return answer["usage"]["prompt_tokens"]


def total(kv):
    return kv["injected"] + kv["local_hit"] + kv["prefilled"]


def test_the_first_question_injects_the_preamble_and_every_fact(engine, memory_for, user):
    memory = memory_for()
    remember(memory, FACTS, user)
    messages = ask(memory.recall(QUESTION, 4, user_id=user))
    plan = engine.plan(messages)
    facts = sum(len(engine.prompt.fact_tokens(fact)) for fact in FACTS)
    covered = plan.inject[0].end + facts

    answer = engine.chat(messages, max_tokens=12, temperature=0)

    rest = len(plan.token_ids) - covered
    assert answer["kv"] == {"injected": covered, "local_hit": 0, "prefilled": rest, "fallback_reason": None}
    assert "Rex" in text_of(answer)


def test_the_second_question_is_served_by_native_blocks_and_injection_together(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, travels(6), user)
    messages = ask(memory.recall("Who visited Rome?", 6, refresh=0, user_id=user), "Who visited Rome?")
    first, second = (engine.chat(messages, max_tokens=1, temperature=0) for _ in range(2))
    covered = first["kv"]["injected"]
    assert covered > engine.block_size
    assert first["kv"]["local_hit"] == 0
    assert second["kv"]["local_hit"] == covered // engine.block_size * engine.block_size
    assert second["kv"]["injected"] + second["kv"]["local_hit"] == covered
    assert text_of(first) == text_of(second)


def test_the_next_turn_of_a_conversation_shares_the_blocks_of_the_one_before(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, travels(6), user)
    messages = ask(memory.recall("Who visited Rome?", 6, refresh=0, user_id=user), "Who visited Rome?")
    first = engine.chat(messages, max_tokens=4, temperature=0)
    messages += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "And who Oslo?"}]
    second = engine.chat(messages, max_tokens=1, temperature=0)
    assert second["kv"]["local_hit"] >= engine.block_size
    assert second["kv"]["injected"] + second["kv"]["local_hit"] >= first["kv"]["injected"]
    assert second["kv"]["fallback_reason"] is None


def test_the_figures_sum_to_the_prompt_and_cached_tokens_are_injected_and_hit(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    remember(memory, travels(6), user)
    with_handle = ask(memory.recall("Who visited Rome?", 6, refresh=0, user_id=user), "Who visited Rome?")
    for messages in (with_handle, with_handle, [{"role": "user", "content": "Hello."}]):
        answer = engine.chat(messages, max_tokens=1, temperature=0)
        kv, details = answer["kv"], answer["usage"].get("prompt_tokens_details") or {}
        assert total(kv) == prompt_tokens(answer)
        assert (details.get("cached_tokens") or 0) == kv["injected"] + kv["local_hit"]


def test_facts_that_are_not_encoded_yet_are_prefilled_and_said_to_be(engine, memory_for, user):
    memory = memory_for(encode=False)
    memory.add(list(FACTS), user_id=user)
    answer = engine.chat(ask(memory.recall(QUESTION, 4, user_id=user)), max_tokens=12, temperature=0)
    assert (answer["kv"]["injected"], answer["kv"]["fallback_reason"]) == (0, "not_encoded")
    assert "Rex" in text_of(answer)


def test_an_encoded_fact_is_injected_though_a_later_one_is_not_encoded_yet(engine, memory_for, user):
    memory = memory_for()
    remember(memory, FACTS[:3], user)
    memory.encoder.pause()
    memory.add(FACTS[3], user_id=user)
    plan = engine.plan(ask(memory.recall(QUESTION, 4, user_id=user)))
    injected = engine.accounting(run(engine, plan)).injected
    assert injected == plan.inject[0].end + sum(len(engine.prompt.fact_tokens(fact)) for fact in FACTS[:3])
    assert plan.reason == "not_encoded"


def test_users_of_the_same_facts_share_no_native_block(engine, memory_for, user):
    memory = memory_for(policy="preamble")
    plans = []
    for name in (user, f"{user}-2"):
        facts = remember(memory, travels(6), name)
        # In a fixed order, since facts of one score rank by their random ids.
        handle = memory.handles.mint(Scope.of(user_id=name), [(fact, 1) for fact in facts])
        plans.append(engine.plan(ask(handle)))
    assert plans[0].token_ids == plans[1].token_ids
    assert engine.accounting(run(engine, plans[0])).local_hit == 0
    assert engine.accounting(run(engine, plans[0])).local_hit >= engine.block_size, "the same salt must hit"
    assert engine.accounting(run(engine, plans[1])).local_hit == 0, "another user must miss"


def test_a_plain_request_of_the_same_tokens_never_sees_injected_state(engine, memory_for, user):
    memory = memory_for(policy="none")
    remember(memory, travels(6), user)
    plan = engine.plan(ask(memory.recall("Who visited Rome?", 6, refresh=0, user_id=user)))
    injected = run(engine, plan)
    run(engine, plan)
    plain = run(engine, Plan(token_ids=plan.token_ids))
    cold = run(engine, plan, inject=False, salt=f"cold {user}")
    assert engine.accounting(plain).local_hit == 0
    assert distance(plain, cold) == 0.0
    assert distance(injected, cold) > 0.0, "the comparison cannot fail"


def test_prefix_policy_makes_the_injected_answer_equal_to_prefill(engine, memory_for, user):
    memory = memory_for(policy="prefix")
    remember(memory, travels(12), user)
    plan = engine.plan(ask(memory.recall("Who visited Rome?", 12, user_id=user)))
    injected, cold = run(engine, plan), run(engine, plan, inject=False, salt=f"cold {user}")
    assert engine.accounting(injected).injected == plan.inject[-1].end
    assert len(plan.inject) == 13
    assert distance(injected, cold) == 0.0


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_run_that_ends_at_a_block_boundary_is_injected_whole(engine, memory_for, user, blocks):
    memory = memory_for(policy="prefix")
    remember(memory, travels(4 * blocks), user)
    handle = memory.recall("Rome", 4 * blocks, user_id=user)
    wanted = blocks * engine.block_size
    plans = (engine.plan(ask(handle, system="so " * words)) for words in range(wanted))
    plan = next(plan for plan in plans if plan.inject[-1].end >= wanted)
    assert plan.inject[-1].end == wanted
    output = run(engine, plan)
    assert engine.accounting(output).injected == wanted
    assert distance(output, run(engine, plan, inject=False, salt=f"cold {user}")) == 0.0
