"""The cheapest setting that keeps a bound, how it is told, and the profile that is made of a grid."""

from __future__ import annotations

import pytest

from inferscale_memory.bench.quality.settings import Setting
from inferscale_memory.bench.tuning import command, report
from inferscale_memory.bench.tuning.choice import choose, within
from inferscale_memory.bench.tuning.grid import Cell, Measured
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.quality.profile import Bound

KL = Bound(metric="kl", value=0.05)
NEAR, FAR = "preceding:9:fact", "preamble"


def cell(policy, refresh, k, kl, **given):
    setting = Setting(policy, refresh)
    tokens = 20.0 * setting.refreshed(k)
    fields = {
        "n": 8,
        "kl_ci": (kl / 2, kl * 1.1),
        "top1": 1 - kl,
        "top1_ci": (1 - 2 * kl, 1.0),
        "ttft_ms": 50.0 + tokens,
        "ttft_spread": (49.0 + tokens, 51.0 + tokens),
        "fact_tokens": 20.0 * k,
        "refreshed_tokens": tokens,
    }
    return Cell(setting, k, kl=kl, **{**fields, **given})


GRID = [
    cell(policy, refresh, k, kl * (1 if k == 10 else 1.2))
    for policy, kls in ((FAR, (0.3, 0.2, 0.06, 1e-9)), (NEAR, (0.09, 0.044, 0.03, 1e-9)))
    for refresh, kl in zip((0, 1, 3, "k"), kls, strict=True)
    for k in (10, 50)
]


def test_the_fewest_facts_refreshed_that_keep_the_bound_everywhere_are_chosen():
    assert choose(GRID, KL).setting == Setting(NEAR, 3)  # refresh 1 keeps it at k=10 only
    assert choose(GRID, Bound(metric="kl", value=0.06)).setting == Setting(NEAR, 1)
    assert choose(GRID, Bound(metric="kl", value=1.0)).setting == Setting(NEAR, 0)


def test_of_policies_that_need_as_many_the_nearest_to_full_prefill_is_chosen():
    assert choose(GRID, Bound(metric="kl", value=0.08)).setting == Setting(NEAR, 1)
    assert choose([one for one in GRID if one.setting.refresh in (3, "k")], Bound(metric="kl", value=0.1)).setting == (
        Setting(NEAR, 3)
    )


def test_top1_is_a_bound_from_below():
    assert choose(GRID, Bound(metric="top1", value=0.95)).setting == Setting(NEAR, 3)
    assert not within(cell(NEAR, 0, 10, 0.2), Bound(metric="top1", value=0.9))


def test_plain_prompt_injection_always_keeps_a_bound_whatever_the_engine_s_noise():
    noisy = cell(NEAR, "k", 10, 1e-4, top1=0.99)
    none = Bound(metric="kl", value=0.0)
    assert within(noisy, none)
    assert choose([*GRID, noisy], none).setting.refresh == "k"
    assert (noisy.point.kl, noisy.point.top1, noisy.point.kl_ci) == (0.0, 1.0, None)


def test_noise_in_time_does_not_make_more_refreshing_cheaper():
    slow = [cell(NEAR, 0, 10, 0.01, ttft_ms=90.0), cell(NEAR, 1, 10, 0.001, ttft_ms=60.0), cell(NEAR, "k", 10, 0.0)]
    assert choose(slow, KL).setting == Setting(NEAR, 0)


def test_it_is_told_what_was_chosen_why_and_how_sure_that_is():
    told = report.reason(choose(GRID, KL), KL, policies=2)
    assert told.startswith(
        f"Chosen: policy {NEAR}, refresh 3: the fewest facts refreshed that keep a mean KL of at most 0.05 at "
        "k = 10, 50, by the best of 2 policies (KL 0.03, 0.036)."
    )
    assert "ask more --questions" not in told
    unsure = [cell(NEAR, 0, 10, 0.048), cell(NEAR, "k", 10, 0.0)]
    assert "The 95 % interval reaches beyond the bound: ask more --questions" in report.reason(
        choose(unsure, KL), KL, policies=1
    )
    none = Bound(metric="kl", value=1e-12)
    assert "Chosen: plain prompt injection. No other setting keeps" in report.reason(
        choose(GRID, none), none, policies=2
    )


def test_it_is_told_how_to_use_the_choice(tmp_path):
    choice = choose(GRID, KL)
    assert f"Memory(engine, policy='{NEAR}') with INFERSCALE_REFRESH=3" in report.usage(choice, None)
    assert "--write saves the profile" in report.usage(choice, None)
    written = report.usage(choice, tmp_path / "quality.json")
    assert "quality.json" in written
    assert "INFERSCALE_REFRESH=auto" in written


def test_rows_hold_times_over_those_of_no_refresh_and_say_what_was_chosen():
    rows = report.rows_of(GRID, choose(GRID, KL), KL)
    assert [row["k"] for row in rows] == [10] * 8 + [50] * 8
    found = {(row["policy"], row["refresh"], row["k"]): row for row in rows}
    assert found[NEAR, 3, 10]["ttft_over_none"] == 2.2
    assert [key for key, row in found.items() if row["chosen"]] == [(NEAR, 3, 10), (NEAR, 3, 50)]
    assert [key[1] for key, row in found.items() if row["within"] and key[::2] == (NEAR, 10)] == [1, 3, "k"]


def test_there_is_a_profile_for_every_policy_with_its_points():
    profiles = report.profiles_of(Measured(tuple(GRID), "vLLM", "f" * 64, 0.25), KL, "demo")
    assert [one.policy for one in profiles] == [FAR, NEAR]
    assert [(point.k, point.refresh) for point in profiles[1].points] == [
        (10, 0), (50, 0), (10, 1), (50, 1), (10, 3), (50, 3), (10, 10), (50, 50),
    ]  # fmt: skip
    assert {point.k: point.kl for point in profiles[1].points if point.refresh == point.k} == {10: 0.0, 50: 0.0}


def test_a_refresh_of_k_and_of_all_are_one_point_of_a_profile():
    cells = [cell(NEAR, 0, 3, 0.1), cell(NEAR, 3, 3, 0.0), cell(NEAR, "k", 3, 0.0)]
    [profile] = report.profiles_of(Measured(tuple(cells), "vLLM", "f" * 64, 0.25), KL, "demo")
    assert [(point.k, point.refresh) for point in profile.points] == [(3, 0), (3, 3)]


def test_the_plot_is_drawn(tmp_path):
    rows = report.rows_of(GRID, choose(GRID, KL), KL)
    report.plot_tuning({"rows": rows, "model": "demo", "engine": "vLLM", "questions": 8}, tmp_path / "tune.png")
    assert (tmp_path / "tune.png").stat().st_size > 1000


def test_the_fastest_and_the_exact_setting_are_always_in_the_grid_and_each_policy_once():
    settings = command.Grid((10,), ("default", "preceding:5:fact", "preamble"), (3, 1)).settings("preceding:5:fact")
    assert settings == [Setting(p, r) for p in ("preceding:5:fact", "preamble") for r in (0, 1, 3, "k")]


@pytest.mark.parametrize(
    "grid",
    [command.Grid(()), command.Grid((0,)), command.Grid(policies=()), command.Grid(refreshes=(-1,)),
     command.Grid(repeat=0), command.Grid(policies=("prefix",)), command.Grid(policies=("best",))],
)  # fmt: skip
def test_a_grid_of_nothing_is_refused(grid):
    with pytest.raises(
        InvalidInputError, match=r"nothing to measure|encodes nothing beforehand|unknown encoding context"
    ):
        grid.settings("preamble")


@pytest.mark.parametrize("given", [{}, {"data": ("x",), "scope": "s"}, {"scope": "s", "questions": 0}])
def test_material_is_a_memory_or_files_and_not_both(given):
    with pytest.raises(InvalidInputError, match="tune on a memory or on files"):
        command.Material(**given).read(None)


def test_more_facts_per_question_than_there_are_are_left_out_or_told(tmp_path):
    file = tmp_path / "small.jsonl"
    lines = [f'{{"fact": "Fact number {n}."}}' for n in range(4)] + ['{"question": "Which?", "answer": "All."}']
    file.write_text("\n".join(lines))
    data = command.Material(data=(file,)).read(None)
    assert command._fitting((2, 4, 10), data.conversations) == [2, 4]
    with pytest.raises(InvalidInputError, match=r"k=\[10\], and only 4 facts are there; give --k of 1 to 4"):
        command._fitting((10,), data.conversations)
