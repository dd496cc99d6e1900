"""Plots of the benchmarks' JSON. Drawn without a display and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_memory._extras import require
from inferscale_memory.errors import InvalidInputError

FORMATS = (".png", ".svg", ".pdf")
LINES = {
    "prefill_ms": ("prompt injection (prefill)", "#b5443c", "o"),
    "inject_ms": ("KV injection", "#1f6f8b", "s"),
    "prefix_hit_ms": ("prefix-cache hit (ceiling)", "#7a7a7a", "^"),
}


def check_plot(file: Path | None) -> None:
    """Refuse what cannot be drawn before minutes are spent on measuring.

    Raises:
        InvalidInputError: the suffix is none of ``FORMATS``.
        MissingExtraError: matplotlib is not installed.
    """
    if file is None:
        return
    if file.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"{file} is no plot: its name must end in {', '.join(FORMATS)}.")
    require("matplotlib", "bench", "the plot")


def plot_ttft(result: Mapping[str, Any], file: Path) -> None:
    """Draw time to the first token over the number of remembered facts, with quartiles as bands.

    Args:
        result: what ``bench.ttft.run`` returns.
        file: where to; the suffix is the format.
    """
    figure_module = require("matplotlib.figure", "bench", "the plot")
    rows = sorted(result["rows"], key=lambda row: row["k"])
    facts = [row["k"] for row in rows]
    figure = figure_module.Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for key, (label, colour, marker) in LINES.items():
        axes.plot(facts, [row[key] for row in rows], label=label, color=colour, marker=marker, linewidth=1.8)
        low, high = zip(*(row["spread"][key] for row in rows), strict=True)
        axes.fill_between(facts, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    dress(axes, f"Time to first token, {result['model']}", "remembered facts in the prompt", "time to first token, ms")
    figure.text(0.005, -0.03, result["engine"], fontsize=7, color="#555555")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150, bbox_inches="tight")


def dress(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    """What all plots have in common."""
    axes.set_title(title, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
