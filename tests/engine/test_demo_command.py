"""``inferscale demo`` and the commands around an engine, as a user runs them: in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

MINUTES = 8


@pytest.fixture
def inferscale(home: Path, demo_model: Path, embedder_model: Path) -> Any:
    """Runs the console script with its own interpreter; stdout."""

    def inferscale(*arguments: str) -> str:
        code = "import sys; from inferscale_memory.cli import main; sys.argv[0] = 'inferscale'; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ},
            timeout=60 * MINUTES,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return inferscale


def test_the_demo_answers_from_handles_what_it_answers_by_prefill_about(inferscale: Any, home: Path) -> None:
    shown = json.loads(inferscale("demo", "--json"))
    assert shown["remembered"] >= 10
    assert len(shown["answers"]) >= 4
    for answer in shown["answers"]:
        assert answer["injected"] + answer["local_hit"] > answer["prefilled"]
        assert answer["injected"] + answer["local_hit"] + answer["prefilled"] == answer["prompt_tokens"]
        assert answer["injected_answer"]
        assert answer["prefilled_answer"]
        assert len(answer["facts"]) == shown["k"]
    assert shown["exactness"]["max_abs_dlogprob"] == 0.0
    assert shown["exactness"]["top1_agree"] is True
    assert not (home / "memory").exists(), "the demo wrote into the user's memory"


def test_a_fact_remembered_in_one_process_is_injected_in_another(inferscale: Any) -> None:
    inferscale("remember", "My dog is called Rex.", "I live in Bern.", "--user", "alice")
    shown = json.loads(
        inferscale("ask", "What is my dog called?", "--user", "alice", "--vllm", "max_model_len=512", "--json")
    )
    assert shown["kv"]["injected"] > 0
    assert shown["kv"]["fallback_reason"] is None
    assert "Rex" in shown["answer"]


def test_a_healthy_machine_passes_the_doctor(inferscale: Any) -> None:
    checks = {check["name"]: check for check in json.loads(inferscale("doctor", "--json"))["checks"]}
    assert checks["round trip"]["state"] == "ok"
    assert "exact tap" in checks["model"]["detail"]


def test_a_benchmark_writes_its_json_and_its_plot(inferscale: Any, tmp_path: Path) -> None:
    target, plot = tmp_path / "t.json", tmp_path / "t.png"
    arguments = ("--k", "0,4", "--fact-tokens", "15", "--repeat", "1", "--json", str(target), "--plot", str(plot))
    inferscale("bench", "ttft", *arguments)
    result = json.loads(target.read_text())
    assert set(result) == {"model", "engine", "rows"}
    assert [row["k"] for row in result["rows"]] == [0, 4]
    assert plot.stat().st_size > 1_000
