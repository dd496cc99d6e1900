"""Throughput without an engine: what is asked, where tokens must come from, what is printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench import common, throughput, throughput_report
from inferscale_memory.bench.conditions import MAX_QUESTIONS, check_source, questions_of
from inferscale_memory.bench.load import WrongSourceError
from inferscale_memory.bench.throughput import PASSES, Workload
from inferscale_memory.errors import InvalidInputError

CONDITIONS = ("inject", "prompt", "mem0")


def kv(injected: int = 0, local_hit: int = 0, reason: str | None = None) -> dict[str, Any]:
    return {"injected": injected, "local_hit": local_hit, "prefilled": 20, "fallback_reason": reason}


def row(users: int = 1, which: str = "cold", condition: str = "inject", qps: float = 6.0, **fields: Any) -> Any:
    times = {"mean": 100.0, "median": 90.0, "p99": 200.0}
    spread = {"qps": [5.0, 7.0], "ttft_ms": [80.0, 120.0]}
    made = {"users": users, "pass": which, "condition": condition, "qps": qps, "goodput_qps": qps, "completed": 4}
    return {**made, "failed": 0, "ttft_ms": times, "tpot_ms": times, "e2el_ms": times, "spread": spread, **fields}


def test_the_questions_of_a_user_are_different_and_the_same_in_every_run() -> None:
    assert len(set(questions_of(3, MAX_QUESTIONS))) == MAX_QUESTIONS
    assert questions_of(3, 10) == questions_of(3, 10)
    assert questions_of(3, 10) != questions_of(4, 10)


def test_no_question_of_the_warm_pass_was_asked_in_the_cold_one() -> None:
    load = Workload(questions=5)
    for user in range(20):
        assert not set(load.asked(user, "cold")) & set(load.asked(user, "warm"))


def test_the_engine_alone_gets_the_questions_of_the_cold_pass() -> None:
    load = Workload(questions=3)
    assert load.asked(7, "engine") == load.asked(7, "cold")


def test_the_question_of_the_warm_up_is_asked_in_no_pass() -> None:
    load = Workload(questions=4)
    warm_up = questions_of(2, 3 * load.questions)[-1]
    assert warm_up not in [*load.asked(2, "cold"), *load.asked(2, "warm")]


def test_users_of_another_number_of_facts_are_other_users_of_a_kept_memory() -> None:
    assert Workload(k=5).name(0) != Workload(k=50).name(0)


@pytest.mark.parametrize(
    "options",
    [{"users": ()}, {"users": (0,)}, {"k": 0}, {"questions": 0}, {"output_tokens": 0}, {"rate": 0.0}, {"repeat": 0}],
)
def test_a_workload_of_nothing_is_refused_before_an_engine_starts(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="nothing to measure"):
        throughput.run(workload=Workload(**options))


def test_more_questions_than_there_are_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=f"wanted at most {MAX_QUESTIONS // 3}"):
        Workload(questions=MAX_QUESTIONS).check()


def test_an_unknown_pass_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match="passes 'lukewarm', wanted some of cold, warm, engine"):
        Workload(passes=("lukewarm",)).check()


def test_mem0_that_is_not_set_up_is_refused_with_the_command_that_does(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="Run: inferscale bench mem0-setup"):
        throughput.run(mem0=True, mem0_interpreter=tmp_path / "none" / "python")


def test_an_injected_prompt_has_all_its_facts_from_chunks_or_from_blocks_of_them() -> None:
    check_source("inject", kv(injected=100), 100)
    check_source("inject", kv(injected=20, local_hit=128), 100)
    with pytest.raises(WrongSourceError, match="wanted all of its 100 fact tokens from KV"):
        check_source("inject", kv(injected=99), 100)


def test_an_injected_prompt_that_fell_back_is_no_number() -> None:
    with pytest.raises(WrongSourceError, match="chunk_missing"):
        check_source("inject", kv(injected=100, reason="chunk_missing"), 100)


@pytest.mark.parametrize("condition", ["prompt", "mem0"])
def test_a_prompt_of_text_has_no_token_injected(condition: str) -> None:
    check_source(condition, kv(local_hit=128), 100)
    with pytest.raises(WrongSourceError, match=f"condition '{condition}' .* wanted no token injected"):
        check_source(condition, kv(injected=1), 100)


def test_rows_are_sorted_and_carry_their_ratio_to_prompt_injection() -> None:
    rows = [
        row(10, "warm", "prompt", 2.0),
        row(10, "cold", "mem0", 1.5),
        row(10, "cold", "prompt", 1.0),
        row(10, "cold", "inject", 7.0),
        row(1, "cold", "inject", 3.0),
    ]
    ordered = throughput_report.with_ratios(rows, PASSES, CONDITIONS)
    assert [(one["users"], one["pass"], one["condition"], one.get("qps_over_prompt")) for one in ordered] == [
        (1, "cold", "inject", None),
        (10, "cold", "inject", 7.0),
        (10, "cold", "prompt", 1.0),
        (10, "cold", "mem0", 1.5),
        (10, "warm", "prompt", 1.0),
    ]


def test_no_cell_of_the_throughput_table_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [throughput_report.flat(row(100, "engine", "inject", 123.4567, overlap=0.975, qps_over_prompt=10.25))]
    common.show(*(common.table(columns, rows) for columns in (throughput_report.COLUMNS, throughput_report.SOURCES)))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "prompt" in printed


def test_every_pass_has_a_line_that_says_what_it_is() -> None:
    assert tuple(throughput_report.NOTES) == PASSES


def test_the_plot_has_a_line_for_each_condition_that_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    import matplotlib as mpl

    rows = [row(users, "cold", condition) for users in (1, 10) for condition in ("inject", "prompt")]
    result = {"model": "m", "engine": "vLLM x", "loop": "closed loop", "workload": {"k": 5}, "rows": rows}
    with mpl.rc_context({"svg.fonttype": "none"}):
        throughput_report.plot_throughput(result, tmp_path / "t.svg")
    drawn = (tmp_path / "t.svg").read_text()
    for text in ("KV injection", "prompt injection", "answers per second", "Time to first token"):
        assert text in drawn
    assert "Mem0" not in drawn
