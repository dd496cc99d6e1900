"""refresh="auto" goes by a measured profile, a budget and a target, and never keeps a question from its answer."""

from __future__ import annotations

import logging

import pytest

from inferscale_memory import ConfigError
from inferscale_memory.quality import untuned_refresh
from inferscale_memory.quality.profile import Bound, write_profiles
from tests.unit.memory.conftest import empty_database, opened  # noqa: F401  # fixtures
from tests.unit.memory.standin import StandIn
from tests.unit.quality.profiles import point, profile


@pytest.fixture
def tuned(opened):  # noqa: F811
    """Opens memories of ten facts of Alice's, of 80 characters each (20 tokens by the profile)."""

    def tuned(*arguments, saved=None, **options):
        memory = opened(*arguments, **options)
        memory.add([f"dog number {n} ".ljust(80, "x") for n in range(10)], user_id="alice")
        if saved is not None:
            write_profiles(memory.settings.quality_file, (saved,))
        return memory

    return tuned


def refreshed(memory, refresh="auto", k=10):
    return memory.explain(memory.recall("dog", k, refresh, user_id="alice")).refresh


def test_without_budget_and_target_the_bound_of_the_profile_is_kept(tuned):
    assert refreshed(tuned(saved=profile())) == 1
    assert refreshed(tuned(saved=profile(bound=Bound(metric="kl", value=0.03)))) == 2
    assert refreshed(tuned(saved=profile(bound=Bound(metric="top1", value=0.95)))) == 3


def test_a_target_goes_before_the_bound(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_KL_TARGET", "0.025")
    assert refreshed(tuned(saved=profile())) == 3


def test_a_target_that_only_full_prefill_reaches_prefills_everything(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_KL_TARGET", "0.0000001")
    assert refreshed(tuned(saved=profile())) == 10


@pytest.mark.parametrize(
    ("budget", "wanted"),
    # refresh 0 takes 70 ms at k=10, every fact more takes 20 ms.
    [("130ms", 3), ("0.13s", 3), ("70ms", 0), ("1ms", 0), ("10s", 10), ("1x", 0), ("2.3x", 4), ("100x", 10)],
)
def test_a_budget_refreshes_as_many_as_it_allows(tuned, monkeypatch, budget, wanted):
    monkeypatch.setenv("INFERSCALE_TTFT_BUDGET", budget)
    assert refreshed(tuned(saved=profile())) == wanted


def test_the_budget_is_a_limit_for_the_target(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_KL_TARGET", "0.025")
    monkeypatch.setenv("INFERSCALE_TTFT_BUDGET", "110ms")
    assert refreshed(tuned(saved=profile())) == 2
    monkeypatch.setenv("INFERSCALE_TTFT_BUDGET", "10s")
    assert refreshed(tuned(saved=profile())) == 3


def test_long_facts_use_up_a_budget_sooner(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_TTFT_BUDGET", "130ms")
    memory = tuned(saved=profile())
    memory.add([f"cat number {n} ".ljust(240, "y") for n in range(3)], user_id="bob")
    handle = memory.recall("cat", 3, "auto", user_id="bob")
    assert memory.explain(handle).refresh == 1


def test_fewer_facts_than_refreshed_are_all_prefilled(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_KL_TARGET", "0.001")
    assert refreshed(tuned(saved=profile()), k=2) == 2


def test_auto_is_a_setting_too_and_numbers_of_a_call_go_before_it(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_REFRESH", "auto")
    memory = tuned(saved=profile())
    assert refreshed(memory, None) == 1
    assert refreshed(memory, 4) == 4


def test_recall_many_and_name_go_by_the_profile(tuned):
    memory = tuned(saved=profile())
    [handle] = memory.recall_many(["dog"], {"user_id": "alice"}, 10, "auto")
    assert memory.explain(handle).refresh == 1
    assert memory.explain(memory.name(handle.facts, "auto", user_id="alice")).refresh == 1


async def test_the_async_twin_goes_by_the_profile(tuned):
    memory = tuned(saved=profile())
    handle = await memory.arecall("dog", 10, "auto", user_id="alice")
    assert memory.explain(handle).refresh == 1


def test_no_facts_need_no_profile(opened, caplog):  # noqa: F811
    assert opened().recall("dog", refresh="auto", user_id="nobody").facts == ()
    assert not caplog.records


def test_without_a_profile_the_setting_counts(tuned, monkeypatch):
    monkeypatch.setenv("INFERSCALE_REFRESH", "3")
    assert refreshed(tuned()) == 3


def test_without_a_profile_a_setting_of_auto_goes_by_the_number_of_facts(tuned, caplog):
    memory = tuned()
    memory.add([f"dog number {n} of a pack" for n in range(10, 25)], user_id="alice")
    with caplog.at_level(logging.WARNING):
        assert [refreshed(memory, None, k) for k in (1, 4, 5, 6, 9, 10, 20, 21)] == [0, 0, 1, 2, 3, 3, 3, 0]
    assert not caplog.records, "that is what a memory does that nobody has tuned, and no matter for a warning"


def test_an_exact_policy_gains_nothing_by_refreshing(tuned):
    memory = tuned(policy="prefix")
    assert refreshed(memory) == 0
    assert refreshed(memory, 2) == 2


@pytest.mark.parametrize(("name", "given"), [("KL_TARGET", "0.02"), ("TTFT_BUDGET", "100ms")])
def test_a_target_that_no_profile_can_keep_is_warned_of_once(tuned, monkeypatch, caplog, name, given):
    monkeypatch.setenv(f"INFERSCALE_{name}", given)
    memory = tuned()
    with caplog.at_level(logging.WARNING):
        assert [refreshed(memory) for _ in range(3)] == [3, 3, 3]
    assert [record.message for record in caplog.records if "auto" in record.message] == [
        "refresh='auto' has no quality profile to go by: there is none of this model and policy (policy "
        "ladder:5:8:20). No budget and no target is kept. inferscale tune --write measures a profile."
    ]


def test_a_broken_profile_is_a_warning_and_no_error(tuned, caplog):
    memory = tuned()
    memory.settings.quality_file.write_text('{"version": 9}')
    with caplog.at_level(logging.WARNING):
        assert refreshed(memory) == untuned_refresh(10)
    assert "quality.json cannot be used" in caplog.text
    assert "Delete it and run inferscale tune again" in caplog.text


def test_a_profile_written_while_the_memory_is_open_is_seen(tuned):
    memory = tuned()
    assert refreshed(memory) == untuned_refresh(10) == 3
    write_profiles(memory.settings.quality_file, (profile(),))
    assert refreshed(memory) == 1
    write_profiles(memory.settings.quality_file, (profile([point(10, 0), point(10, 5, kl=0.01), point(10, 10)]),))
    assert refreshed(memory) == 3


def test_a_profile_of_another_policy_or_model_does_not_count(tuned, home):
    assert refreshed(tuned(saved=profile(policy="preamble"))) == untuned_refresh(10)
    assert refreshed(tuned(StandIn(home), saved=profile())) == untuned_refresh(10)


def test_with_an_engine_the_model_s_own_tokens_are_counted(tuned, home, monkeypatch):
    monkeypatch.setenv("INFERSCALE_TTFT_BUDGET", "130ms")
    engine = StandIn(home)
    memory = tuned(engine, saved=profile(fingerprint=engine.fingerprint))
    # A token per byte: "- ", 80 characters and a line's end are 83 tokens of the 60 that the budget has room for.
    assert refreshed(memory) == 0


@pytest.mark.parametrize(("name", "given"), [("TTFT_BUDGET", "soon"), ("TTFT_BUDGET", "0.5x"), ("KL_TARGET", "0")])
def test_a_target_that_is_none_is_refused_when_the_memory_opens(opened, monkeypatch, name, given):  # noqa: F811
    monkeypatch.setenv(f"INFERSCALE_{name}", given)
    with pytest.raises(ConfigError, match=f"INFERSCALE_{name}='{given}' cannot be used"):
        opened()
