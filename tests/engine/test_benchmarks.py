"""The benchmarks measure what they say, or fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.bench import exactness, session, ttft
from inferscale_memory.bench.common import (
    Bench,
    describe,
    fresh_salt,
)
from inferscale_memory.bench.prompts import (
    conversation,
)
from inferscale_memory.errors import EngineError


@pytest.fixture
def bench(engine: LocalEngine, memory_for: Callable[..., Memory]) -> Bench:
    return Bench(engine, memory_for("preceding:2:fact"))


@pytest.fixture
def exact_bench(engine: LocalEngine, memory_for: Callable[..., Memory]) -> Bench:
    return Bench(engine, memory_for("prefix"))


def test_ttft_measures_prompts_of_every_number_of_facts(bench: Bench) -> None:
    none, few, more = ttft.measure(bench, [0, 3, 9], fact_tokens=20, repeat=2)
    assert none["injected_tokens"] == 0
    # The same preamble stands before the facts, so every further fact is 20 tokens of prompt and of injection.
    assert more["prompt_tokens"] - few["prompt_tokens"] == 120
    assert more["injected_tokens"] - few["injected_tokens"] == 120
    assert none.keys() == few.keys() == more.keys()
    for row in (none, few, more):
        block = bench.engine.block_size
        assert row["prefix_hit_tokens"] == round(row["injected_tokens"] / block) * block
        assert min(row["prefill_ms"], row["inject_ms"], row["prefix_hit_ms"], row["query_to_first_token_ms"]) > 0
        assert row["inject_disk_ms"] > 0
        assert "inject_host_ms" not in row, "this engine has no host memory behind its arena"
    assert ttft.growth([none, few, more])["to"] == 9


def test_ttft_takes_no_time_of_a_prompt_that_was_not_injected(bench: Bench) -> None:
    bench.remember(3, 20)
    case = ttft._case(bench, 3)
    with pytest.raises(EngineError, match=r"a prompt of 3 facts had .*'injected': 0.* wanted \d+ injected"):
        ttft._inject(bench, replace(case, plan=replace(case.plan, inject=[])))


def test_ttft_takes_no_time_of_a_prefix_hit_that_hit_too_little(bench: Bench) -> None:
    bench.remember(6, 25)
    case = ttft._case(bench, 6)
    assert case.hit > 0
    with pytest.raises(EngineError, match=f"wanted 0 injected, .* {case.hit} from the prefix cache"):
        ttft._timed(bench, case, inject=False, salt=fresh_salt(), injected=0, hit=case.hit, plan=case.hit_plan)


def test_session_tells_sticky_from_ranked_order_by_where_the_tokens_came_from(bench: Bench) -> None:
    sticky, ranked = session.measure(bench, [24], 24, 25, repeat=1, questions=session.QUESTIONS[:4])
    assert (sticky["order"], ranked["order"]) == ("sticky", "ranked")
    assert (sticky["questions"], ranked["questions"]) == (4, 4)
    # Every fact is recalled each time, so all but the first question find them where they stood.
    assert sticky["local_hit"] > ranked["local_hit"]
    for row in (sticky, ranked):
        assert row["injected"] + row["local_hit"] > 24 * 25
        assert 0 < row["first_token_ms"] < row["query_to_first_token_ms"]


def test_session_takes_no_time_of_a_question_with_fewer_facts_or_with_prefilled_ones(bench: Bench) -> None:
    case = session.Case(3, "sticky")
    session._remember(bench, {case.user}, 2, 20)
    with pytest.raises(EngineError, match="2 facts were recalled, wanted 3"):
        session._ask(bench, case, "Who?")
    assert bench.memory.encoder is not None
    bench.memory.encoder.stop()
    bench.memory.add("Nobody has run this one through the model.", **case.scope)
    with pytest.raises(EngineError, match=r"'not_encoded'.*wanted every fact injected or hit"):
        session._ask(bench, case, "Who?")
    assert case.kv == []


def test_exactness_finds_no_difference_below_a_thousand_tokens(exact_bench: Bench) -> None:
    one, five = exactness.measure(exact_bench, [1, 5])
    assert (one["max_abs_dlogprob"], five["max_abs_dlogprob"]) == (0.0, 0.0)
    assert (one["top1_agree"], five["top1_agree"]) == (1.0, 1.0)
    assert (one["k"], five["k"], five["prompt_tokens"] - one["prompt_tokens"]) == (1, 5, 100)


def test_exactness_would_show_facts_that_have_not_seen_each_other(
    engine: LocalEngine, memory_for: Callable[..., Memory]
) -> None:
    bench = Bench(engine, memory_for("none"))
    bench.remember(5, 25)
    found = exactness.compare(engine, bench.messages("What do you know about the guitar?", 5))
    assert found.distance > 0.01


def test_exactness_compares_nothing_where_nothing_is_injected(exact_bench: Bench) -> None:
    with pytest.raises(EngineError, match="the prompt is not injected whole"):
        exactness.compare(exact_bench.engine, conversation("Who?"))


def test_a_bench_that_recalls_fewer_facts_than_wanted_stops(bench: Bench) -> None:
    bench.remember(2, 20)
    with pytest.raises(EngineError, match="2 facts were recalled, wanted 3"):
        bench.messages("Who?", 3)


def test_the_engine_is_described_in_one_line(engine: LocalEngine) -> None:
    line = describe(engine)
    assert line.startswith("vLLM ")
    assert f"blocks of {engine.block_size} tokens" in line
    assert "\n" not in line
