"""--refresh, --quality and ``tune``: what the command line passes on and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench.tuning import command
from inferscale_memory.quality.profile import Bound

Run = Callable[..., Any]
FakeMemory = Any


@pytest.mark.parametrize(("given", "wanted"), [("auto", "auto"), ("all", "all"), ("4", 4)])
@pytest.mark.parametrize("verb", ["recall", "ask"])
def test_refresh_is_a_number_or_a_word(
    run: Run, memory: FakeMemory, engine: Any, verb: str, given: str, wanted: object
) -> None:
    assert run(verb, "dog?", "--user", "alice", "--refresh", given).exit_code == 0
    assert memory.calls[0][2]["refresh"] == wanted


@pytest.mark.parametrize("verb", ["recall", "ask"])
def test_quality_is_the_memory_s(run: Run, memory: FakeMemory, engine: Any, verb: str) -> None:
    assert run(verb, "dog?", "--user", "alice", "--quality", "exact").exit_code == 0
    assert memory.quality == "exact"
    run(verb, "dog?", "--user", "alice")
    assert memory.quality is None


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--refresh", "-1", "'all' or 'auto'"),
        ("--refresh", "few", "'all' or 'auto'"),
        ("--quality", "best", "balanced"),
    ],
)
def test_what_is_none_is_a_usage_error(run: Run, memory: FakeMemory, option: str, value: str, said: str) -> None:
    result = run("recall", "dog?", "--user", "alice", option, value)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert memory.calls == []


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``tune`` was called with."""
    seen: dict[str, Any] = {}

    def fake(*arguments: Any, **options: Any) -> dict[str, Any]:
        names = ("material", "grid", "bound", "output", "tools")
        seen.update(zip(names, arguments, strict=True), **options)
        return {"chosen": {"refresh": 2}}

    monkeypatch.setattr(command, "run", fake)
    return seen


def test_tune_passes_its_options_on(run: Run, tuned: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("Who?\n\n Wann? \n")
    result = run(
        "tune", "-u", "alice", "--ask", str(tmp_path / "asked.txt"), "--k", "5,20", "--policies", "none,nearest:5",
        "--refresh", "0,4", "--bound-top1", "0.9", "--questions", "7", "--facts", "70", "--repeat", "2", "--seed", "3",
        "--write", "--vllm", "max_model_len=512", "--plot", str(tmp_path / "t.png"), "--json", str(tmp_path / "t.json"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    material = tuned["material"]
    assert (material.scope.user, material.data, material.asked) == ("alice", (), ("Who?", "Wann?"))
    assert (material.questions, material.facts, material.seed) == (7, 70, 3)
    assert tuned["grid"] == command.Grid((5, 20), ("none", "nearest:5"), (0, 4), 2)
    assert tuned["bound"] == Bound(metric="top1", value=0.9)
    assert tuned["output"] == command.Output(tmp_path / "t.json", tmp_path / "t.png", True)
    assert tuned["tools"].engine_options == {"max_model_len": 512}


def test_tune_has_a_bound_of_its_own_and_writes_no_profile_unasked(run: Run, tuned: dict[str, Any]) -> None:
    assert run("tune", "-u", "alice").exit_code == 0
    assert tuned["bound"] == command.DEFAULT_BOUND
    assert tuned["output"] == command.Output(None, None, False)


def test_tune_takes_files_in_place_of_a_memory(run: Run, tuned: dict[str, Any], tmp_path: Path) -> None:
    assert run("tune", "--data", str(tmp_path / "a.jsonl"), "--bound-kl", "0.1").exit_code == 0
    assert (tuned["material"].scope, tuned["material"].data) == (None, (tmp_path / "a.jsonl",))
    assert tuned["bound"] == Bound(metric="kl", value=0.1)


def test_tune_prints_one_json_object_where_it_is_asked_to(run: Run, tuned: dict[str, Any]) -> None:
    assert run("tune", "-u", "alice", "--json", "-").stdout == '{"chosen": {"refresh": 2}}\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "whose memory"),
        (["-u", "alice", "--bound-kl", "1", "--bound-top1", "1"], "exclude each other"),
        (["--data", "x", "--ask", "y"], "--ask is about a memory"),
        (["-u", "alice", "--k", "many"], "--k 'many' is no list"),
        (["-u", "alice", "--ask", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_tune_refuses_what_contradicts_itself(run: Run, tuned: dict[str, Any], arguments: list[str], said: str) -> None:
    result = run("tune", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert tuned == {}
