"""bench and demo: options passed on, JSON kept clean."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from inferscale_memory.cli import bench as bench_module

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand-ins of the measuring scripts, which keep their options and print where they should not."""
    calls: list[dict[str, Any]] = []

    def script(**options: Any) -> dict[str, Any]:
        calls.append(options)
        sys.stdout.write("noise\n")
        return {"rows": []}

    import inferscale_memory

    package = ModuleType("inferscale_memory.bench")
    for name in ("ttft", "exactness", "session"):
        module = ModuleType(f"inferscale_memory.bench.{name}")
        module.run = script  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        setattr(package, name, module)
    demo = ModuleType("inferscale_memory.demo")
    demo.run = script  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, demo.__name__, demo)
    monkeypatch.setattr(inferscale_memory, "bench", package, raising=False)
    monkeypatch.setattr(inferscale_memory, "demo", demo, raising=False)
    return calls


def test_bench_ttft_passes_its_options(run: Run, scripts: list[dict[str, Any]], tmp_path: Path) -> None:
    target, plot = tmp_path / "t.json", tmp_path / "t.png"
    arguments = ("--k", "0, 5", "--fact-tokens", "9", "--repeat", "2", "--json", str(target), "--plot", str(plot))
    assert run("bench", "ttft", *arguments).exit_code == 0
    assert scripts == [
        {"k": (0, 5), "fact_tokens": 9, "repeat": 2, "model": "demo", "json": target, "plot": plot, "home": None}
    ]


def test_bench_session_passes_its_options(run: Run, scripts: list[dict[str, Any]], tmp_path: Path) -> None:
    target = tmp_path / "s.json"
    arguments = ("--k", "5", "--facts", "9", "--fact-tokens", "20", "--repeat", "2", "--json", str(target))
    assert run("bench", "session", *arguments).exit_code == 0
    assert scripts == [
        {"k": (5,), "facts": 9, "fact_tokens": 20, "repeat": 2, "model": "demo", "json": target, "home": None}
    ]


def test_bench_prints_json_for_a_dash(run: Run, scripts: list[dict[str, Any]]) -> None:
    result = run("bench", "exactness", "--json", "-")
    assert json.loads(result.stdout) == {"rows": []}
    assert scripts[0]["json"] is None


@pytest.mark.parametrize("k", ["", "a", "1,,2", "-1", "1.5"])
def test_bench_refuses_what_is_no_list_of_numbers(run: Run, scripts: list[dict[str, Any]], k: str) -> None:
    result = run("bench", "ttft", f"--k={k}")
    assert result.exit_code == 2
    assert "is no list of numbers of facts" in result.stderr
    assert scripts == []


def test_bench_refuses_a_target_it_cannot_write_before_measuring(
    run: Run, scripts: list[dict[str, Any]], tmp_path: Path
) -> None:
    result = run("bench", "exactness", "--json", str(tmp_path / "none" / "x.json"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert scripts == []


def test_demo_prints_json_alone(json_of: JsonOf, scripts: list[dict[str, Any]]) -> None:
    assert json_of("demo") == {"rows": []}
    assert scripts == [{"model": "demo", "home": None, "json": True}]


def test_the_default_list_of_bench_is_the_documented_one() -> None:
    assert bench_module._numbers("0,5,10,25,50,100") == (0, 5, 10, 25, 50, 100)
