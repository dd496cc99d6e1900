"""What ``bench throughput`` prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferscale_memory.bench.conditions import INJECT, MEM0, PROMPT
from inferscale_memory.bench.panels import Line, Panel, draw

NOTES = {
    "cold": "nothing of the user in vLLM's prefix cache before; chunks in the workers' memory; all inside the clock",
    "warm": "the user's next questions, right after those of cold; all inside the clock",
    "engine": "the questions of cold again, cold; retrieval, handle and assembly done before the clock starts",
}
COLUMNS = {
    "users": "users",
    "pass": "pass",
    "condition": "condition",
    "qps": "QPS",
    "qps_over_prompt": "QPS/prompt",
    "goodput_qps": "goodput",
    "ttft": "TTFT ms",
    "ttft_p99": "p99",
    "prompt_ttft_over_this": "prompt/TTFT",
    "retrieval": "retrieval ms",
    "tpot": "TPOT ms",
    "e2el": "E2EL ms",
}
SOURCES = {
    "users": "users",
    "pass": "pass",
    "condition": "condition",
    "completed": "answered",
    "failed": "failed",
    "injected": "injected tokens",
    "local_hit": "hit in prefix cache",
    "prefilled": "prefilled",
    "overlap": "overlap with our facts",
}
LABELS = {INJECT: "KV injection", PROMPT: "prompt injection", MEM0: "Mem0, prompt injection"}


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the table: medians, and P99 of TTFT."""
    medians = {
        name: row[f"{name}_ms"]["median"] for name in ("ttft", "tpot", "e2el", "retrieval") if f"{name}_ms" in row
    }
    return {**row, **medians, "ttft_p99": row["ttft_ms"]["p99"] if "ttft_ms" in row else None}


def with_ratios(
    rows: Sequence[dict[str, Any]], passes: Sequence[str], conditions: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows sorted, each with its rate and median TTFT against prompt injection of the same users and pass."""
    yardsticks = {(row["users"], row["pass"]): row for row in rows if row["condition"] == PROMPT}
    ordered = sorted(
        rows, key=lambda row: (row["users"], passes.index(row["pass"]), conditions.index(row["condition"]))
    )
    for row in ordered:
        prompt = yardsticks.get((row["users"], row["pass"]))
        if prompt is None or not prompt["qps"] or not row["completed"]:
            continue
        row["qps_over_prompt"] = round(row["qps"] / prompt["qps"], 2)
        row["prompt_ttft_over_this"] = round(prompt["ttft_ms"]["median"] / row["ttft_ms"]["median"], 2)
    return ordered


def plot_throughput(result: Mapping[str, Any], file: Path) -> None:
    """Draw rate and time to the first token over the number of users, of the first pass that was measured.

    Args:
        result: what ``bench.throughput.run`` returns.
        file: where to; the suffix is the format.
    """
    which = result["rows"][0]["pass"]
    rows = [row for row in result["rows"] if row["pass"] == which and "ttft_ms" in row]
    by_condition = {
        label: found for name, label in LABELS.items() if (found := [row for row in rows if row["condition"] == name])
    }
    rate = {label: _line(found, [row["qps"] for row in found], "qps") for label, found in by_condition.items()}
    first = {
        label: _line(found, [row["ttft_ms"]["median"] for row in found], "ttft_ms")
        for label, found in by_condition.items()
    }
    panels = [
        Panel(f"Throughput, {result['model']}, {which}", "users", "answers per second", rate, log="xy"),
        Panel("Time to first token, query to token", "users", "ms, median and quartiles", first, log="xy"),
    ]
    draw(panels, f"{result['engine']}; {result['loop']}; {result['workload']['k']} facts per question", file)


def _line(rows: Sequence[Mapping[str, Any]], values: Sequence[float], spread: str) -> Line:
    low, high = zip(*(row["spread"][spread] for row in rows), strict=True)
    return Line([row["users"] for row in rows], values, low, high)
