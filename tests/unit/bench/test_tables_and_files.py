"""What the benchmarks print and write, with no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench import common, exactness, plots, ttft
from inferscale_memory.errors import InvalidInputError, MissingExtraError
from inferscale_memory.serving.resolve import Plan


def case(k: int = 50, **seconds: list[float]) -> ttft.Case:
    given = {
        "prefill": [1.2, 1.0, 1.1],
        "inject": [0.1],
        "inject_host": [0.11],
        "inject_disk": [0.2],
        "default": [0.12],
        "balanced": [0.14],
        "prefix_hit": [0.08],
        "query_to_first_token": [0.15],
    }
    plan = Plan(token_ids=list(range(1320)))
    made = ttft.Case(k, plan, plan, plan, plan, injectable=1280, hit=1280, facts=1250)
    made.seconds.update({**given, **seconds})
    return made


def result() -> dict[str, Any]:
    return {"model": "m", "engine": "vLLM x", "rows": [ttft.row(case(k), 3) for k in (50, 0, 10)]}


def test_a_row_holds_medians_in_milliseconds() -> None:
    row = ttft.row(case(), 3)
    assert (row["prefill_ms"], row["inject_ms"], row["prefix_hit_ms"]) == (1100.0, 100.0, 80.0)
    assert row["query_to_first_token_ms"] == 150.0


def test_a_row_tells_how_its_prompt_is_made_up() -> None:
    row = ttft.row(case(), 3)
    assert (row["k"], row["prompt_tokens"], row["injected_tokens"], row["prefix_hit_tokens"]) == (50, 1320, 1280, 1280)


def test_loading_is_what_injecting_takes_longer_than_a_prefix_hit() -> None:
    assert ttft.row(case(), 3)["load_ms"] == 20.0


def test_loading_may_come_out_negative_and_is_not_hidden() -> None:
    assert ttft.row(case(prefix_hit=[0.2]), 3)["load_ms"] == -100.0


def test_ratios_are_those_of_the_medians() -> None:
    row = ttft.row(case(), 3)
    assert (row["prefill_over_inject"], row["inject_over_prefix_hit"]) == (11.0, 1.25)


def test_the_spread_is_the_quartiles() -> None:
    assert ttft.row(case(), 3)["spread"]["prefill_ms"] == [1050.0, 1150.0]


def test_a_table_is_markdown_with_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    common.show("Times:", common.table({"k": "facts", "ms": "prefill"}, [{"k": 5, "ms": 1198.04}, {"k": 50}]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "Times:"
    assert [cell.strip() for cell in lines[1].strip("|").split("|")] == ["facts", "prefill"]
    assert set(lines[2]) <= set("|-: ")
    assert [cell.strip() for cell in lines[3].strip("|").split("|")] == ["5", "1198.0"]
    assert [cell.strip() for cell in lines[4].strip("|").split("|")] == ["50", "-"]


def test_no_cell_of_the_widest_table_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    common.show(common.table(ttft.COLUMNS, [ttft.row(case(), 3)]))
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "cell"), [(0.0, "0"), (0.2512, "0.251"), (9.876, "9.88"), (12.34, "12.3"), (7, "7"), (None, "-")]
)
def test_a_cell_shows_as_many_digits_as_mean_something(value: Any, cell: str) -> None:
    assert common.shown(value) == cell


def test_a_json_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    common.write_json(tmp_path / "r.json", {"rows": [{"k": 1}]})
    assert json.loads((tmp_path / "r.json").read_text()) == {"rows": [{"k": 1}]}
    assert [path.name for path in tmp_path.glob("*r.json*")] == ["r.json"]


def test_a_result_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    common.write_json(tmp_path / "r.json", {"rows": [1]})
    with pytest.raises(TypeError, match="not JSON serializable"):
        common.write_json(tmp_path / "r.json", {"rows": [object()]})
    assert json.loads((tmp_path / "r.json").read_text()) == {"rows": [1]}


def test_no_two_salts_are_alike_and_none_could_kill_the_engine() -> None:
    salts = {common.fresh_salt() for _ in range(100)}
    assert len(salts) == 100
    assert all(len(salt) <= 128 and salt.isalnum() for salt in salts)


def test_a_row_of_exactness_is_the_mean_over_its_prompts() -> None:
    found = [exactness.Comparison(1300, 0.0, True, 0.25), exactness.Comparison(1302, 0.5, False, 0.25)]
    assert exactness.row(48, found) == {
        "prompt_tokens": 1301,
        "k": 48,
        "prompts": 2,
        "max_abs_dlogprob": 0.25,
        "top1_agree": 0.5,
        "floor": 0.25,
    }


@pytest.mark.parametrize("options", [{"k": ()}, {"k": (0, 5)}, {"prompts": 0}, {"prompts": 21}])
def test_exactness_refuses_what_it_cannot_compare_before_starting_an_engine(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="wanted k of 1 or more and 1 to 20"):
        exactness.run(**options)


@pytest.mark.parametrize("options", [{"k": ()}, {"k": (-1,)}, {"repeat": 0}, {"fact_tokens": 0}])
def test_ttft_refuses_what_it_cannot_measure_before_starting_an_engine(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="nothing to measure"):
        ttft.run(**options)


def test_every_question_of_exactness_is_another() -> None:
    assert len(set(exactness.TOPICS)) == 20


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_plot_is_drawn_without_a_display(tmp_path: Path, suffix: str, start: bytes) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    plots.plot_ttft(result(), tmp_path / f"t{suffix}")
    assert (tmp_path / f"t{suffix}").read_bytes().startswith(start)


def test_a_plot_names_its_axes_and_its_three_lines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        plots.plot_ttft(result(), tmp_path / "t.svg")
    drawn = (tmp_path / "t.svg").read_text()
    for text in (
        "remembered facts in the prompt",
        "time to first token, ms",
        *(line[0] for line in plots.LINES.values()),
    ):
        assert text in drawn


def test_a_plot_of_an_unknown_format_is_refused_before_measuring() -> None:
    with pytest.raises(InvalidInputError, match=r"t\.xls is no plot: its name must end in \.png"):
        ttft.run(plot=Path("t.xls"))


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises((MissingExtraError, ImportError), match="matplotlib"):
        plots.check_plot(Path("t.png"))


def test_growth_is_that_from_five_to_fifty_facts_where_both_were_measured() -> None:
    few, many, most = (ttft.row(case(k, inject=[seconds]), 3) for k, seconds in ((5, 0.1), (50, 0.15), (100, 0.9)))
    assert ttft.growth([few, many, most]) == {"from": 5, "to": 50, "inject": 1.5, "prefix_hit": 1.0}
    assert ttft.growth([many, most])["to"] == 100
    assert ttft.growth([many]) is None
