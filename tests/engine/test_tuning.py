"""``inferscale tune`` reads a memory, chooses what keeps the bound, and refresh="auto" goes by what it has measured."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from asking import FACTS, QUESTION, embed, travels

from inferscale_memory import LocalEngine, Memory, Scope
from inferscale_memory.bench.quality import measuring
from inferscale_memory.bench.tuning import command
from inferscale_memory.quality.profile import Bound, read_profiles

KS = (3, 6)
QUESTIONS = 2
SECRET = "zyzzyva"
ALICE = Scope.of(user_id="alice")


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file, SQLite's passing ones of open connections aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".db-shm", ".db-wal"})
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def tuned_home(tmp_path_factory: pytest.TempPathFactory, _clean_settings: None) -> Path:
    """A home of nine facts of Alice's, two questions she has asked among them."""
    home = tmp_path_factory.mktemp("tuned-home")
    with Memory(home=home, embedder=embed, index="numpy") as memory:
        said = [{"role": "user", "content": f"Where is the {SECRET} of number {n}?"} for n in range(QUESTIONS)]
        memory.add(said, user_id="alice")
        memory.add([*FACTS, *travels(3)], user_id="alice")
        memory.add("Bob has a cat.", user_id="bob")
    return home


@pytest.fixture(scope="module")
def tuned(
    tuned_home: Path, demo_model: Path, tmp_path_factory: pytest.TempPathFactory, _engine_environment: None
) -> dict[str, Any]:
    """The result of tuning, and what was in the home's files before and after."""
    out = tmp_path_factory.mktemp("tuned")
    grid = command.Grid(KS, ("preamble", "preceding:2:fact"), (0, 1), repeat=1)
    output = command.Output(out / "tune.json", out / "tune.png", write=True)
    tools = command.Tools({"max_model_len": 1024}, embedder=embed, index="numpy")
    before = contents(tuned_home)
    # A database named by a variable is the user's own too, whatever home the measuring has.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "ANSWER_TOKENS", 4)
        patch.setenv("INFERSCALE_DATABASE_URL", f"sqlite:///{tuned_home}/memory/facts.db")
        result = command.run(
            command.Material(ALICE, questions=QUESTIONS), grid, Bound(metric="kl", value=0.05), output, tools,
            model=str(demo_model), home=tuned_home,
        )  # fmt: skip
        assert os.environ["INFERSCALE_DATABASE_URL"].endswith("facts.db")
    return {"result": result, "out": out, "before": before, "after": contents(tuned_home)}


def test_every_setting_is_measured_and_plain_prompt_injection_stands_at_zero(tuned: dict[str, Any]) -> None:
    rows = tuned["result"]["rows"]
    settings = {(row["policy"], row["refresh"], row["k"]) for row in rows}
    assert settings == {(p, r, k) for p in ("preamble", "preceding:2:fact") for r in (0, 1, "k") for k in KS}
    assert all(row["n"] == QUESTIONS and row["ttft_ms"] > 0 for row in rows)
    assert all(row["kl"] < 1e-6 for row in rows if row["refresh"] == "k")
    assert all(row["kl"] > 1e-4 for row in rows if row["refresh"] == 0)
    assert all(row["refreshed_tokens"] == row["fact_tokens"] > 0 for row in rows if row["refresh"] == "k")


def test_the_choice_keeps_the_bound_and_nothing_cheaper_does(tuned: dict[str, Any]) -> None:
    rows, chosen = tuned["result"]["rows"], tuned["result"]["chosen"]
    mine = [row for row in rows if row["chosen"]]
    assert {(row["policy"], row["refresh"]) for row in mine} == {(chosen["policy"], chosen["refresh"])}
    assert all(row["within"] for row in mine)
    cheaper = [0, 1, "k"][: [0, 1, "k"].index(chosen["refresh"])]
    for policy in ("preamble", "preceding:2:fact"):
        for refresh in cheaper:
            tried = [row for row in rows if (row["policy"], row["refresh"]) == (policy, refresh)]
            assert not all(row["kl"] <= 0.05 for row in tried)


def test_the_memory_itself_was_only_read(tuned: dict[str, Any], tuned_home: Path) -> None:
    added = {name: digest for name, digest in tuned["after"].items() if name not in tuned["before"]}
    assert list(added) == ["memory/quality.json"]
    assert {name: tuned["after"][name] for name in tuned["before"]} == tuned["before"]
    with Memory(home=tuned_home, embedder=embed, index="numpy") as memory:
        assert memory.store.count(ALICE) == QUESTIONS + len(FACTS) + 3
        assert memory.store.count(Scope.of(user_id="bob")) == 1


def test_no_text_of_the_memory_is_in_what_is_written(tuned: dict[str, Any], tuned_home: Path) -> None:
    written = [(tuned["out"] / "tune.json").read_text(), (tuned_home / "memory" / "quality.json").read_text()]
    for text in written:
        assert SECRET not in text
        assert "alice" not in text.lower()
    assert json.loads(written[0]) == json.loads(json.dumps(tuned["result"]))
    assert (tuned["out"] / "tune.png").stat().st_size > 1000


def test_the_profile_holds_every_policy_for_this_model(tuned: dict[str, Any], tuned_home: Path) -> None:
    profiles = read_profiles(tuned_home / "memory" / "quality.json").profiles
    assert {one.policy for one in profiles} == {"preamble", "preceding:2:fact"}
    for one in profiles:
        assert [(point.k, point.refresh) for point in one.points] == [(k, r) for k in KS for r in (0, 1, k)]
        assert (one.bound, one.questions) == (Bound(metric="kl", value=0.05), QUESTIONS)
        assert 0.1 < one.tokens_per_character < 1


def test_auto_goes_by_the_profile_of_an_ordinary_engine_of_the_same_model(
    tuned: dict[str, Any], tuned_home: Path, engine: LocalEngine, memory_for: Any, user: str, caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = engine.settings.quality_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((tuned_home / "memory" / "quality.json").read_bytes())
    try:
        with caplog.at_level(logging.WARNING):
            memory = memory_for(policy=tuned["result"]["chosen"]["policy"])
            memory.add([*FACTS, *travels(2)], user_id=user)
            handle = memory.recall(QUESTION, 6, "auto", user_id=user)
            chosen = tuned["result"]["chosen"]["refresh"]
            assert memory.explain(handle).refresh <= (6 if chosen == "k" else chosen)
            monkeypatch.setenv("INFERSCALE_KL_TARGET", "1e-9")
            exact = memory_for(policy="preamble")
            exact.add(list(FACTS), user_id=user)
            assert exact.explain(exact.recall(QUESTION, 4, "auto", user_id=user)).refresh == 4
        assert "refresh='auto'" not in caplog.text
    finally:
        file.unlink()
