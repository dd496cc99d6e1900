"""Between measured points: exact at the points, monotone, and on the careful side of simple laws."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.quality import TtftBudget
from inferscale_memory.quality.curves import Curves, choose_refresh
from tests.unit.quality.profiles import kl_of, point, profile

LAW = Curves(profile())
NOISE = st.floats(0.5, 2.0)


def test_measured_points_come_back_as_they_were_measured():
    for one in profile().points:
        assert LAW.ttft(one.fact_tokens, one.refreshed_tokens) == pytest.approx(one.ttft_ms)
        assert LAW.error(one.k, one.refresh, "kl") == pytest.approx(one.kl)
        assert LAW.error(one.k, one.refresh, "top1") == pytest.approx(1 - one.top1)


@given(st.integers(1, 50), st.integers(0, 120))
def test_error_is_never_below_the_law_that_the_points_follow(k, refresh):
    assert LAW.error(k, refresh, "kl") >= kl_of(k, min(refresh, k)) - 1e-12


@given(st.integers(10, 120), st.integers(0, 120))
def test_time_is_never_below_the_law_from_the_fewest_measured_facts_on(k, refresh):
    refresh = min(refresh, k)
    assert LAW.ttft(20.0 * k, 20.0 * refresh) >= 50.0 + 20.0 * refresh + 2.0 * k - 1e-9


def test_beyond_the_measured_facts_time_and_error_grow_in_proportion():
    assert LAW.ttft(2000.0, 0.0) == pytest.approx(2 * LAW.ttft(1000.0, 0.0))
    assert LAW.error(100, 1, "kl") == pytest.approx(2 * LAW.error(50, 1, "kl"))


@given(st.lists(st.tuples(NOISE, NOISE), min_size=8, max_size=8), st.integers(1, 80))
def test_however_noisy_the_points_refreshing_more_is_never_faster_nor_worse(noise, k):
    law = profile().points
    noisy = [
        point(one.k, one.refresh, ttft_ms=one.ttft_ms * slow, kl=one.kl * bad)
        for one, (slow, bad) in zip(law, noise, strict=True)
    ]
    curves = Curves(profile(noisy))
    times = [curves.ttft(20.0 * k, 20.0 * refresh) for refresh in range(k + 1)]
    errors = [curves.error(k, refresh, "kl") for refresh in range(k + 1)]
    assert all(after >= before - 1e-9 for before, after in pairwise(times))
    assert all(after <= before + 1e-12 for before, after in pairwise(errors))
    assert errors[-1] == 0.0


@given(st.lists(st.floats(1.0, 200.0), max_size=60), st.floats(0.001, 0.2), st.floats(1.0, 3.0))
def test_a_choice_keeps_the_budget_and_reaches_the_target_if_the_budget_allows(tokens, target, ratio):
    budget = TtftBudget(ratio=ratio)
    chosen = choose_refresh(profile(), tokens, budget, target)
    whole = sum(tokens)
    limit = ratio * LAW.ttft(whole, 0.0)
    assert 0 <= chosen <= len(tokens)
    assert chosen == 0 or LAW.ttft(whole, sum(tokens[:chosen])) <= limit + 1e-9
    if LAW.error(len(tokens), chosen, "kl") > target:
        assert LAW.ttft(whole, sum(tokens[: chosen + 1])) > limit - 1e-9
    elif chosen:
        assert LAW.error(len(tokens), chosen - 1, "kl") > target


def test_a_profile_of_one_number_of_facts_is_enough():
    curves = Curves(profile([point(10, 0), point(10, 10)]))
    assert curves.error(5, 0, "kl") == curves.error(10, 0, "kl") == kl_of(10, 0)
    assert curves.ttft(20.0, 0.0) == curves.ttft(200.0, 0.0) == 70.0


@pytest.mark.parametrize(("given", "ms", "ratio"), [("150ms", 150, None), ("0.2 s", 200, None), ("1.25X", None, 1.25)])
def test_budgets_are_read_as_people_write_them(given, ms, ratio):
    assert TtftBudget.parse(given) == (ms, ratio)


@pytest.mark.parametrize("given", ["", "150", "0ms", "0.9x", "-1s", "1e3ms", "soon"])
def test_what_is_no_budget_is_refused(given):
    with pytest.raises(InvalidInputError, match=f"'{given}' is no budget of time; wanted '150ms'"):
        TtftBudget.parse(given)
