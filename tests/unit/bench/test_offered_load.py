"""Offering questions, and figures of what became of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.bench import load
from inferscale_memory.bench.load import Answer, Pass, Sample, WrongSourceError
from inferscale_memory.errors import EngineError

KV = {"injected": 100, "local_hit": 20, "prefilled": 30, "fallback_reason": None}


def answer(first: float, last: float, tokens: int = 11, **fields: Any) -> Answer:
    return Answer(first, last, tokens, fields.pop("kv", KV), **fields)


def sample(due: float, first: float, last: float, user: str = "u", question: str = "q?", **fields: Any) -> Sample:
    return Sample(user, question, due, answer(first, last, **fields))


async def at_once(user: str, question: str) -> Answer:
    now = time.perf_counter()
    return answer(now, now)


def nothing() -> None:
    """No progress bar."""


async def test_a_closed_loop_asks_all_users_at_once_and_each_one_question_after_the_other() -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most_of_a_user = most_in_all = 0
    everybody = asyncio.Event()

    async def ask(user: str, question: str) -> Answer:
        nonlocal most_of_a_user, most_in_all
        running[user] += 1
        most_of_a_user = max(most_of_a_user, running[user])
        most_in_all = max(most_in_all, sum(running.values()))
        if sum(running.values()) == 2:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 10)
        running[user] -= 1
        return await at_once(user, question)

    found = await load.closed_loop(ask, {"a": ["1", "2"], "b": ["3", "4"]}, nothing)
    assert (most_of_a_user, most_in_all) == (1, 2)
    asked = [(one.user, one.question) for one in found.samples]
    assert sorted(asked) == [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")]
    assert asked.index(("a", "1")) < asked.index(("a", "2"))


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    released = asyncio.Event()

    async def ask(user: str, question: str) -> Answer:
        if question == "second":
            released.set()
        await asyncio.wait_for(released.wait(), 10)  # the first is answered only once the second was asked
        return await at_once(user, question)

    found = await load.open_loop(ask, [(0.0, "a", "first"), (0.001, "a", "second")], nothing)
    assert {one.question for one in found.samples} == {"first", "second"}
    assert not any(one.error for one in found.samples)


async def test_an_open_loop_counts_from_when_a_question_was_due() -> None:
    async def late(user: str, question: str) -> Answer:
        return await at_once(user, question)

    before = time.perf_counter()
    found = await load.open_loop(late, [(0.02, "a", "q")], nothing)
    assert found.samples[0].due >= before + 0.02
    assert found.samples[0].answer is not None
    assert found.samples[0].answer.first >= found.samples[0].due


async def test_a_question_that_fails_is_counted_and_stops_no_other() -> None:
    async def ask(user: str, question: str) -> Answer:
        if question == "bad":
            raise EngineError("too long")
        return await at_once(user, question)

    found = await load.closed_loop(ask, {"a": ["bad", "good"]}, nothing)
    assert [one.error for one in found.samples] == ["EngineError: too long", ""]
    row = load.summary([found], 1000)
    assert (row["requests"], row["completed"], row["failed"]) == (2, 1, 1)
    assert row["first_error"] == "EngineError: too long"


async def test_tokens_from_the_wrong_source_stop_the_whole_measurement() -> None:
    async def ask(user: str, question: str) -> Answer:
        if user == "a":
            raise WrongSourceError("nothing was injected")
        await asyncio.sleep(60)
        raise AssertionError("the others are stopped")

    with pytest.raises(WrongSourceError, match="nothing was injected"):
        await load.closed_loop(ask, {"a": ["1"], "b": ["1"]}, nothing)


async def test_an_error_of_the_benchmark_itself_is_not_counted_as_a_failed_question() -> None:
    async def ask(user: str, question: str) -> Answer:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await load.closed_loop(ask, {"a": ["1"]}, nothing)


@given(users=st.integers(1, 6), questions=st.integers(1, 4), rate=st.floats(0.1, 100), seed=st.integers(0, 99))
def test_poisson_arrivals_hold_every_question_once_in_each_users_order(
    users: int, questions: int, rate: float, seed: int
) -> None:
    asked = {f"u{user}": [f"{user}.{at}" for at in range(questions)] for user in range(users)}
    arrivals = load.poisson(asked, rate, seed)
    assert all(one[0] < two[0] for one, two in itertools.pairwise(arrivals))
    for user, own in asked.items():
        assert [question for _, name, question in arrivals if name == user] == own
    assert arrivals == load.poisson(asked, rate, seed)


def test_the_gaps_of_poisson_arrivals_have_the_mean_that_the_rate_says() -> None:
    arrivals = load.poisson({f"u{user}": ["q"] * 20 for user in range(200)}, 10.0, seed=1)
    assert arrivals[-1][0] / len(arrivals) == pytest.approx(0.1, rel=0.1)


def test_latencies_count_from_when_the_question_was_due() -> None:
    one = Pass([sample(10.0, 10.5, 11.5, retrieval=0.2)], 2.0)
    assert load.latencies([one]) == {"ttft": [500.0], "e2el": [1500.0], "tpot": [100.0], "retrieval": [200.0]}


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    assert load.latencies([Pass([sample(0.0, 1.0, 1.0, tokens=1)], 1.0)])["tpot"] == []


def test_a_summary_gives_rates_over_the_time_of_the_whole_pass() -> None:
    row = load.summary([Pass([sample(0.0, 0.1, 1.1), sample(0.0, 0.4, 1.4)], 2.0)], ttft_limit=200)
    assert (row["qps"], row["goodput_qps"], row["output_tokens_per_s"], row["seconds"]) == (1.0, 0.5, 11.0, 2.0)
    assert (row["injected"], row["local_hit"], row["prefilled"]) == (200, 40, 60)


def test_a_summary_gives_mean_median_and_p99_in_milliseconds() -> None:
    row = load.summary([Pass([sample(0.0, at / 1000, 1.0) for at in range(1, 101)], 1.0)], 1000)
    assert row["ttft_ms"] == {"mean": 50.5, "median": 50.5, "p99": pytest.approx(99.01)}
    assert row["spread"]["ttft_ms"] == pytest.approx([25.75, 75.25])


def test_rates_of_several_passes_are_their_median_with_quartiles() -> None:
    row = load.summary([Pass([sample(0, 0.1, 0.2)], seconds) for seconds in (1.0, 2.0, 4.0)], 1000)
    assert row["qps"] == 0.5
    assert row["spread"]["qps"] == [0.375, 0.75]


def test_a_pass_without_an_answer_has_no_latency_and_a_rate_of_nothing() -> None:
    row = load.summary([Pass([Sample("u", "q", 0.0, error="EngineError: no")], 1.0)], 1000)
    assert (row["qps"], row["completed"], row["failed"]) == (0.0, 0, 1)
    assert "ttft_ms" not in row


def test_overlap_is_the_share_of_our_facts_that_others_found_for_the_same_question() -> None:
    ours = Pass([sample(0, 1, 1, question=q, facts=("a", "b")) for q in ("1", "2")], 1.0)
    theirs = Pass(
        [sample(0, 1, 1, question="1", facts=("b", "a")), sample(0, 1, 1, question="2", facts=("a", "c"))], 1.0
    )
    assert load.overlap([theirs], [ours]) == 0.75


def test_there_is_no_overlap_where_no_question_is_the_same() -> None:
    one = Pass([sample(0, 1, 1, question="1", facts=("a",))], 1.0)
    other = Pass([sample(0, 1, 1, question="2", facts=("a",))], 1.0)
    assert load.overlap([one], [other]) is None
