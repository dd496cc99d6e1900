"""From results to rows, tables, JSON and a plot; and the command without an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferscale_memory.bench.quality import command, engines, report
from inferscale_memory.bench.quality.command import Choice, JudgeOptions, default_folder
from inferscale_memory.bench.quality.judge import JudgeError
from inferscale_memory.bench.quality.plot import plot_quality
from inferscale_memory.bench.quality.results import FULL, Result
from inferscale_memory.bench.quality.settings import Setting, default_setting
from inferscale_memory.errors import InvalidInputError

DEFAULT = default_setting()
ONE = Result("q1", "a", "1", "none", 0, 10, 10, 0, 3, 300, 270, 4.0, 0.5, 0.5, 3.0, "Rex", 1.0)
KEYS = {
    *("policy", "refresh", "k", "n", "kl", "kl_ci", "top1", "top1_ci", "nll", "nll_ci", "f1", "f1_ci", "default"),
    *("nll_full", "nll_diff", "nll_diff_ci", "injected_tokens", "prefilled_tokens", "facts", "judged", "categories"),
}


def results() -> list[Result]:
    """Two questions of two categories at two k, under three settings, with references and what is above and below."""
    found: list[Result] = []
    for k in (10, 50):
        for at, category in enumerate(("1", "4")):
            asked = replace(ONE, question=f"q{at}", category=category, k=k)
            for at_setting, setting in enumerate((Setting("none", 0), DEFAULT, Setting(DEFAULT.policy, "k"))):
                kl = 0.4 / (1 + at_setting) + at / 10 if setting.refresh != "k" else 0.0
                found.append(replace(asked, policy=setting.policy, refresh=setting.refresh, kl=kl, nll=3.0 + kl))
            text = replace(asked, kl=None, top1=None, nll_full=None, refresh=None, injected=0)
            found.append(replace(text, policy=FULL, nll=3.0))
            if k == 10:
                for policy in ("full_context", "gold_evidence", "no_memory"):
                    found.append(replace(text, policy=policy, k=None, nll=2.0))
    return found


def result(found: Sequence[Result], verdicts: report.Verdicts | None = None) -> dict[str, Any]:
    return {
        "model": "demo",
        "engine": "vLLM",
        "order": "ranked",
        "data": {"questions": 2, "categories": {"1": "multi-hop", "4": "single-hop"}, "left_out": ["a: blank"]},
        "rows": report.rows_of(found, verdicts),
        "reference": report.references_of(found, verdicts),
        **report.ceilings_of(found, verdicts),
    }


def test_a_row_is_the_mean_of_its_questions_with_intervals_and_categories() -> None:
    row = report.rows_of(results())[0]
    assert row.keys() == KEYS
    assert (row["policy"], row["refresh"], row["k"], row["n"], row["default"]) == ("none", 0, 10, 2, False)
    assert (row["kl"], row["nll"], row["nll_full"], row["nll_diff"]) == (0.45, 3.45, 3.0, 0.45)
    assert row["kl_ci"] == [0.4, 0.5]
    assert row["nll_diff_ci"] == [0.4, 0.5]
    assert (row["injected_tokens"], row["prefilled_tokens"]) == (270, 30)
    assert {name: (one["n"], one["kl"]) for name, one in row["categories"].items()} == {"1": (1, 0.4), "4": (1, 0.5)}


def test_only_the_librarys_own_setting_is_marked_as_the_default() -> None:
    marked = {(row["policy"], row["refresh"]) for row in report.rows_of(results()) if row["default"]}
    assert marked == {(DEFAULT.policy, DEFAULT.refresh)}


def test_references_stand_by_k_and_ceilings_by_name() -> None:
    found = result(results())
    assert [(row["k"], row["n"], row["nll"], row["top1"]) for row in found["reference"]] == [
        (10, 2, 3.0, 1.0),
        (50, 2, 3.0, 1.0),
    ]
    assert found["ceilings"].keys() == {"full_context", "gold_evidence"}
    assert found["floor"]["no_memory"]["nll"] == 2.0
    assert report.ceilings_of([]) == {"ceilings": {}, "floor": {}}


def test_a_figure_that_a_question_lacks_is_none_rather_than_a_mean_of_the_others() -> None:
    found = [ONE, replace(ONE, question="q2", answer=None, f1=None)]
    assert (report.rows_of(found)[0]["f1"], report.rows_of(found)[0]["f1_ci"]) == (None, None)


def test_verdicts_are_counted_by_question_and_answer() -> None:
    found = [ONE, replace(ONE, question="q2", answer="Tom"), replace(ONE, question="q3", answer="?")]
    row = report.rows_of(found, {("q1", "Rex"): True, ("q2", "Tom"): False, ("q3", "?"): None})[0]
    assert row["judged"] == 0.5
    assert report.rows_of(found)[0]["judged"] is None


def test_the_result_is_json_and_the_tables_are_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    from inferscale_memory.bench.common import show

    found = result(results(), {("q0", "Rex"): True, ("q1", "Rex"): True})
    assert json.loads(json.dumps(found)) == found
    show(*report.tables(found))
    shown = capsys.readouterr().out
    assert f"| {DEFAULT.policy}, {DEFAULT.refresh} * |".replace(" ", "") in shown.replace(" ", "")
    assert "0.45 [0.4, 0.5]" in shown
    assert "Multi-hop questions apart:" in shown
    assert "no memory" in shown
    assert "judged" in shown
    assert "1 items of the data were left out, the first: a: blank" in shown


def test_the_plot_has_lines_for_every_setting(tmp_path: Path) -> None:
    plot_quality(result(results()), tmp_path / "quality.svg")
    drawn = (tmp_path / "quality.svg").read_text()
    assert drawn.startswith("<?xml")
    plot_quality(result(results()), tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 10_000


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    lines = [{"fact": "The dog is Rex."}, {"question": "Which dog?", "answer": "Rex"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No engine, and results as if there were one."""
    opened: dict[str, Any] = {}

    @contextmanager
    def open_engine(model: str, folder: Path, **options: Any) -> Iterator[Any]:
        opened.update(model=model, folder=folder, **options)
        yield SimpleNamespace()

    def measured(
        engine: Any, folder: Path, conversations: Any, questions: Any, *_: Any
    ) -> tuple[list[Result], list[str]]:
        if opened.get("stop"):
            raise KeyboardInterrupt
        opened.update(users=[conversation.id for conversation in conversations])
        asked = replace(ONE, question=questions[0].id)
        return [asked, replace(asked, policy=FULL, kl=None)], ["user: item 1: too long"]

    monkeypatch.setattr(command, "open_forcing_engine", open_engine)
    monkeypatch.setattr(command, "_measured", measured)
    monkeypatch.setattr(command, "describe", lambda _: "vLLM")
    return opened


CHOICE = Choice.of(["none"], ["0"], [10], ceilings=False)


def test_the_command_writes_what_it_returns(data: Path, engine: dict[str, Any], tmp_path: Path, home: Path) -> None:
    found = command.run(data=[data], choice=CHOICE, json=tmp_path / "q.json", plot=tmp_path / "q.png")
    assert json.loads((tmp_path / "q.json").read_text()) == found
    assert found.keys() >= {"model", "engine", "data", "rows", "reference", "ceilings", "floor"}
    assert (tmp_path / "q.png").is_file()
    assert engine["folder"] == home / "bench" / "quality" / "demo"
    assert engine["users"] == ["user"]
    assert found["data"]["files"] == ["mine.jsonl"]
    assert found["data"]["left_out"] == ["user: item 1: too long"]


def test_a_judge_that_fails_leaves_everything_that_was_measured(
    data: Path, engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferscale_memory.bench.quality import judge

    monkeypatch.setattr(judge, "ATTEMPTS", 1)
    target = tmp_path / "q.json"
    with pytest.raises(JudgeError, match="cannot be reached"):
        command.run(data=[data], choice=CHOICE, judge=JudgeOptions("http://127.0.0.1:9/v1", "m"), json=target)
    written = json.loads(target.read_text())
    assert (written["judge"], written["rows"][0]["kl"]) == (None, 0.5)


def test_ctrl_c_says_how_to_go_on(
    data: Path, engine: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine["stop"] = True
    with pytest.raises(KeyboardInterrupt):
        command.run(data=[data], choice=CHOICE, keep=tmp_path / "kept")
    assert f"is kept in {tmp_path / 'kept'}; the same command goes on from there" in capsys.readouterr().err


def test_a_judge_without_answers_is_refused_before_measuring(data: Path, engine: dict[str, Any]) -> None:
    choice = replace(CHOICE, generate=False)
    with pytest.raises(InvalidInputError, match="a judge needs answers to judge"):
        command.run(data=[data], choice=choice, judge=JudgeOptions("http://127.0.0.1:9/v1", "m"))
    assert engine == {}


@pytest.mark.parametrize("more", [{"k": [0]}, {"k": []}, {"order": "best"}])
def test_a_choice_of_nothing_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing to measure|order is 'best'"):
        Choice.of(["none"], ["0"], **{"k": [10], **more})


def test_every_model_has_a_folder_of_its_own(home: Path) -> None:
    assert default_folder("org/Model-1.5B").relative_to(home).as_posix() == "bench/quality/org-Model-1.5B"
    assert default_folder("/models/../x").is_relative_to(home / "bench" / "quality")
    assert default_folder("..").name == "model"


@pytest.mark.parametrize(("own", "length"), [(512, 512), (131_072, 8_192)])
def test_a_prompt_may_be_as_long_as_the_model_takes_up_to_a_bound(tmp_path: Path, own: int, length: int) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": own}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert engines.longest_prompt(str(tmp_path), tmp_path) == length
