"""bench and demo: options passed on, JSON kept clean."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from inferscale_memory.bench.quality import Choice, JudgeOptions
from inferscale_memory.bench.throughput import Workload
from inferscale_memory.cli.bench_options import numbers

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
    for name in ("ttft", "exactness", "session", "throughput", "encode", "footprint", "scale", "quality"):
        module = ModuleType(f"inferscale_memory.bench.{name}")
        module.run = script  # type: ignore[attr-defined]
        module.Workload = Workload  # type: ignore[attr-defined]
        module.Choice, module.JudgeOptions = Choice, JudgeOptions  # type: ignore[attr-defined]
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
    assert numbers("0,5,10,25,50,100") == (0, 5, 10, 25, 50, 100)


def test_bench_throughput_passes_its_workload(run: Run, scripts: list[dict[str, Any]], tmp_path: Path) -> None:
    workload = ("--users", "1,4", "--k", "5", "--questions", "3", "--output-tokens", "8", "--rate", "2.5")
    more = ("--ttft-limit", "250", "--passes", "cold, engine", "--repeat", "2", "--mem0", "--policy", "preamble")
    assert run("bench", "throughput", *workload, *more, "--keep", str(tmp_path)).exit_code == 0
    assert scripts == [
        {
            "workload": Workload((1, 4), 5, 3, 8, 25, 2.5, 250.0, ("cold", "engine"), 2),
            "mem0": True,
            "mem0_interpreter": None,
            "policy": "preamble",
            "keep": tmp_path,
            "model": "demo",
            "json": None,
            "plot": None,
            "home": None,
        }
    ]


def test_the_defaults_of_bench_throughput_are_those_of_a_workload(run: Run, scripts: list[dict[str, Any]]) -> None:
    assert run("bench", "throughput").exit_code == 0
    assert scripts[0]["workload"] == Workload()


def test_bench_throughput_refuses_what_is_no_list_of_users(run: Run, scripts: list[dict[str, Any]]) -> None:
    result = run("bench", "throughput", "--users", "many")
    assert result.exit_code == 2
    assert "--users 'many' is no list of numbers of users" in result.stderr
    assert scripts == []


def test_bench_encode_passes_its_policies(run: Run, scripts: list[dict[str, Any]]) -> None:
    assert run("bench", "encode", "--policies", "none, preamble", "--facts", "9", "--repeat", "1").exit_code == 0
    given = {name: scripts[0][name] for name in ("policies", "facts", "fact_tokens", "repeat")}
    assert given == {"policies": ["none", "preamble"], "facts": 9, "fact_tokens": 25, "repeat": 1}


def test_bench_memory_can_do_without_an_engine(run: Run, scripts: list[dict[str, Any]]) -> None:
    assert run("bench", "memory", "--computed-only").exit_code == 0
    assert scripts[0]["measured"] is False


def test_bench_scale_passes_its_lists(run: Run, scripts: list[dict[str, Any]]) -> None:
    assert run("bench", "scale", "--k", "5,20", "--facts", "1,100", "--users", "1,3").exit_code == 0
    assert (scripts[0]["k"], scripts[0]["facts"], scripts[0]["users"]) == ((5, 20), (1, 100), (1, 3))


def test_bench_quality_passes_its_choice(run: Run, scripts: list[dict[str, Any]], tmp_path: Path) -> None:
    lists = ("--k", "5,10", "--policy", "none, preamble", "--refresh", "0,k", "--categories", "1,4")
    more = ("--questions", "7", "--order", "sticky", "--seed", "3", "--no-ceilings", "--facts", "turns")
    judge = ("--judge", "http://judge/v1", "--judge-model", "strict", "--keep", str(tmp_path))
    result = run("bench", "quality", "--data", "a.json", "--data", "b.json", *lists, *more, *judge)
    assert result.exit_code == 0, result.stderr
    assert scripts == [
        {
            "data": [Path("a.json"), Path("b.json")],
            "choice": Choice.of(
                ["none", "preamble"], ["0", "k"], [5, 10], categories=("1", "4"), questions=7, order="sticky", seed=3,
                ceilings=False,
            ),
            "format": None,
            "facts": "turns",
            "judge": JudgeOptions("http://judge/v1", "strict"),
            "keep": tmp_path,
            "model": "demo",
            "json": None,
            "plot": None,
            "home": None,
        }
    ]  # fmt: skip


def test_bench_quality_wants_a_judges_url_and_name(run: Run, scripts: list[dict[str, Any]]) -> None:
    result = run("bench", "quality", "--data", "a.json", "--judge", "http://judge/v1")
    assert result.exit_code == 2
    assert "--judge and --judge-model go together" in result.stderr
    assert scripts == []


def test_bench_quality_documents_its_own_format(run: Run) -> None:
    shown = " ".join(run("bench", "quality", "--help").stdout.split())
    assert '{"fact": TEXT, "id": NAME, "user": WHOSE}' in shown


def test_bench_mem0_setup_tells_what_it_installed(run: Run, json_of: JsonOf, monkeypatch: pytest.MonkeyPatch) -> None:
    from inferscale_memory.bench import mem0_client

    made = {"python": "/there/bin/python", "mem0ai": "9.9", "torch": "2.13"}
    monkeypatch.setattr(mem0_client, "set_up", lambda home: made)
    assert "mem0ai 9.9 for /there/bin/python, with the torch 2.13" in " ".join(
        run("bench", "mem0-setup").stdout.split()
    )
    assert json_of("bench", "mem0-setup") == made
