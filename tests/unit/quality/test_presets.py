"""What quality="exact", "balanced" and "fast" set, and what goes before what."""

from __future__ import annotations

from typing import get_args

import pytest

from inferscale_memory import ConfigError
from inferscale_memory.config import Settings, load_settings
from inferscale_memory.quality import PRESETS, Quality, untuned_refresh
from tests.unit.memory.conftest import empty_database, opened  # noqa: F401  # fixtures

DEFAULTS = Settings.model_fields


def refreshed(memory, **options):
    return memory.explain(memory.recall("dog", 9, user_id="alice", **options)).refresh


@pytest.fixture
def alice(opened):  # noqa: F811
    """Opens memories of nine facts of Alice's."""

    def alice(**options):
        memory = opened(**options)
        memory.add([f"dog number {n} {'x' * n}" for n in range(9)], user_id="alice")
        return memory

    return alice


def test_every_word_has_a_preset_and_a_place_for_what_it_was_measured_to_cost():
    assert set(get_args(Quality)) == set(PRESETS)


def test_exact_prefills_every_fact_balanced_a_few_and_fast_none(alice):
    found = {word: refreshed(alice(quality=word)) for word in PRESETS}
    assert (found["exact"], found["fast"]) == (9, 0)
    assert 0 < found["balanced"] < 9


def test_a_preset_keeps_the_default_policy(opened):  # noqa: F811
    assert {opened(quality=word).policy.name for word in PRESETS} == {DEFAULTS["policy"].default}


def test_without_a_word_the_library_s_defaults_count(alice):
    memory = alice()
    assert memory.settings.quality is None
    assert refreshed(memory) == untuned_refresh(9) == refreshed(alice(quality="balanced"))


def test_refresh_of_a_call_goes_before_the_preset(alice):
    assert refreshed(alice(quality="exact"), refresh=2) == 2
    assert refreshed(alice(quality="exact"), refresh=0) == 0


def test_policy_of_a_memory_goes_before_the_preset_whose_refresh_still_counts(alice):
    memory = alice(quality="exact", policy="preamble")
    assert memory.policy.name == "preamble"
    assert refreshed(memory) == 9


def test_a_variable_of_refresh_goes_before_the_variable_of_quality(alice, monkeypatch):
    monkeypatch.setenv("INFERSCALE_QUALITY", "exact")
    assert refreshed(alice()) == 9
    monkeypatch.setenv("INFERSCALE_REFRESH", "2")
    assert refreshed(alice()) == 2


def test_quality_as_an_argument_goes_before_every_variable(alice, monkeypatch):
    monkeypatch.setenv("INFERSCALE_QUALITY", "fast")
    monkeypatch.setenv("INFERSCALE_REFRESH", "2")
    assert refreshed(alice(quality="exact")) == 9
    assert load_settings(quality="exact").quality == "exact"


def test_a_preset_s_policy_yields_to_the_variable_but_not_to_it_as_an_argument(monkeypatch):
    from inferscale_memory import config
    from inferscale_memory.quality import Preset

    monkeypatch.setattr(config, "PRESETS", {**PRESETS, "balanced": Preset("preceding:2:fact", 1)})
    monkeypatch.setenv("INFERSCALE_POLICY", "preamble")
    assert load_settings(quality="balanced").policy == "preceding:2:fact"
    monkeypatch.setenv("INFERSCALE_QUALITY", "balanced")
    found = load_settings()
    assert (found.policy, found.refresh) == ("preamble", 1)
    monkeypatch.delenv("INFERSCALE_POLICY")
    assert load_settings().policy == "preceding:2:fact"


def test_a_word_that_is_none_is_refused(opened, monkeypatch):  # noqa: F811
    with pytest.raises(ConfigError, match=r"INFERSCALE_QUALITY='best' cannot be used: .*'exact', 'balanced' or 'fast'"):
        opened(quality="best")
    monkeypatch.setenv("INFERSCALE_QUALITY", "best")
    with pytest.raises(ConfigError, match="INFERSCALE_QUALITY='best'"):
        opened()


def test_all_is_a_refresh_of_settings_and_calls(alice, monkeypatch):
    assert refreshed(alice(), refresh="all") == 9
    monkeypatch.setenv("INFERSCALE_REFRESH", "all")
    assert refreshed(alice()) == 9


@pytest.mark.parametrize("given", ["-1", "some", "1.5"])
def test_a_refresh_that_is_none_is_refused_in_settings(given, monkeypatch):
    monkeypatch.setenv("INFERSCALE_REFRESH", given)
    with pytest.raises(ConfigError, match=f"INFERSCALE_REFRESH='{given}' cannot be used: .*'all' or 'auto'"):
        load_settings()
