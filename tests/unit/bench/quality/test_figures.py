"""Token-F1, bootstrap intervals, samples, settings: small functions that figures depend on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from inferscale_memory.bench.quality.answers import token_f1
from inferscale_memory.bench.quality.data import Question
from inferscale_memory.bench.quality.forcing import Forced, agreement, divergence
from inferscale_memory.bench.quality.intervals import mean_interval
from inferscale_memory.bench.quality.sampling import choose
from inferscale_memory.bench.quality.settings import Setting, default_setting, parse_settings
from inferscale_memory.config import load_settings
from inferscale_memory.errors import EngineError, InvalidInputError


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("The Dog!", "a dog", 1.0),
        ("a red dog", "the dog", 2 / 3),
        ("dog dog", "dog", 2 / 3),
        ("cat", "dog", 0.0),
        ("", "dog", 0.0),
        ("", "the", 1.0),
        ("7 May 2023", "May 7, 2023", 1.0),
    ],
)
def test_token_f1_counts_shared_words_without_case_punctuation_and_articles(answer: str, gold: str, f1: float) -> None:
    assert token_f1(answer, gold) == pytest.approx(f1)


def test_the_interval_of_a_mean_is_near_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = mean_interval(list(values)) or (0.0, 0.0)
    error = values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.1 * error)


def test_equal_values_have_equal_intervals_and_a_single_one_has_none() -> None:
    assert mean_interval([1.0, 2.0, 5.0]) == mean_interval([1.0, 2.0, 5.0])
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)
    assert mean_interval([2.0]) is None


def questions() -> list[Question]:
    sizes = {("a", "1"): 40, ("a", "2"): 20, ("b", "1"): 10, ("b", "5"): 30}
    return [
        Question(f"{conversation}{category}{at}", conversation, "?", "!", category)
        for (conversation, category), size in sizes.items()
        for at in range(size)
    ]


def test_a_sample_has_every_conversation_and_category_by_its_share() -> None:
    found = choose(questions(), 10)
    shares = Counter((question.conversation, question.category) for question in found)
    assert shares == {("a", "1"): 4, ("a", "2"): 2, ("b", "1"): 1, ("b", "5"): 3}


@pytest.mark.parametrize("count", [1, 7, 33, 99])
def test_a_sample_is_as_large_as_wanted_without_repetition(count: int) -> None:
    found = choose(questions(), count)
    assert len({question.id for question in found}) == len(found) == count


def test_a_seed_gives_one_sample_and_another_seed_another() -> None:
    assert choose(questions(), 10, seed=3) == choose(questions(), 10, seed=3)
    assert choose(questions(), 10, seed=3) != choose(questions(), 10, seed=4)


def test_only_wanted_categories_are_sampled_and_too_large_a_sample_is_all() -> None:
    assert {question.category for question in choose(questions(), 1000, ["1", "2"])} == {"1", "2"}
    assert len(choose(questions(), 1000, ["1", "2"])) == 70


def test_a_category_that_no_question_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match="The data has the categories 1, 2, 5"):
        choose(questions(), 10, ["9"])


def test_policies_are_crossed_with_refreshes_and_the_default_is_one_pair() -> None:
    found = parse_settings(["none", "preceding(20, turn)", "default"], ["0", " k"])
    assert found == [
        Setting("none", 0),
        Setting("none", "k"),
        Setting("preceding:20:turn", 0),
        Setting("preceding:20:turn", "k"),
        default_setting(),
    ]


def test_the_default_is_what_the_settings_say_and_stands_once() -> None:
    settings = load_settings()
    found = parse_settings(["default", settings.policy], [str(settings.refresh), "k"])
    assert [setting.is_default(10) for setting in found] == [True, False]
    assert found[0] == Setting(settings.policy, settings.refresh)  # type: ignore[arg-type]  # it is not "all"


def test_what_the_default_refreshes_goes_by_the_number_of_facts() -> None:
    auto = Setting("none", "auto")
    assert [auto.at(k) for k in (4, 10, 50)] == [Setting("none", 0), Setting("none", 3), Setting("none", 0)]
    assert Setting("none", "k").at(10) == Setting("none", "k")
    policy = default_setting().policy
    assert [Setting(policy, 3).is_default(k) for k in (10, 50)] == [True, False]
    assert [Setting(policy, 0).is_default(k) for k in (10, 50)] == [False, True]
    assert not Setting("preamble", 3).is_default(10)


def test_k_as_a_refresh_is_every_fact_and_a_number_at_most_every_fact() -> None:
    assert [Setting("none", refresh).refreshed(10) for refresh in (0, 3, 99, "k")] == [0, 3, 10, 10]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policies", "refreshes", "reason"),
    [
        (["none"], ["some"], "refresh 'some' is neither a number of facts nor 'k'"),
        (["none"], ["-1"], "refresh '-1' is neither"),
        (["prefix"], ["0"], "encodes nothing beforehand"),
        (["best"], ["0"], "unknown encoding context 'best'"),
        ([], ["0"], "there is nothing to measure"),
        (["none"], [], "there is nothing to measure"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(policies: list[str], refreshes: list[str], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        parse_settings(policies, refreshes)


def forced(*rows: list[float], tokens: tuple[int, ...] = (0, 1)) -> Forced:
    return Forced(np.log(np.array(rows, dtype=np.float32)), tokens, 0, 0)


def test_kl_is_the_mean_over_tokens_of_the_sum_over_the_vocabulary() -> None:
    full, other = forced([0.5, 0.5], [0.9, 0.1]), forced([0.25, 0.75], [0.9, 0.1])
    wanted = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert divergence(full, other) == pytest.approx(wanted / 2, rel=1e-5)
    assert divergence(full, full) == 0.0


def test_a_token_that_the_reference_rules_out_adds_nothing_to_kl() -> None:
    with np.errstate(divide="ignore"):
        full, other = forced([1.0, 0.0], tokens=(0,)), forced([0.5, 0.5], tokens=(0,))
    assert divergence(full, other) == pytest.approx(np.log(2), rel=1e-5)


def test_agreement_and_nll_are_per_token() -> None:
    full, other = forced([0.6, 0.4], [0.9, 0.1]), forced([0.4, 0.6], [0.8, 0.2])
    assert agreement(full, other) == 0.5
    assert other.nll == pytest.approx(-(np.log(0.4) + np.log(0.2)) / 2, rel=1e-5)


def test_answers_of_other_tokens_are_not_compared() -> None:
    with pytest.raises(EngineError, match="two answers of 1 and 2 tokens cannot be compared"):
        divergence(forced([0.5, 0.5], tokens=(0,)), forced([0.5, 0.5], [0.5, 0.5]))
