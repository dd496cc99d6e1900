"""A row of small plots side by side: what every benchmark but ``ttft`` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferscale_memory._extras import require
from inferscale_memory.bench.plots import dress

COLOURS = ("#1f6f8b", "#b5443c", "#7a7a7a", "#c58b1b", "#4f7f3a")
MARKERS = ("s", "o", "^", "D", "v")
STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Line:
    """Points of one series; ``low`` and ``high`` make a band around it, or bars, of the same length as ``y``."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One plot: lines by their label, or bars by theirs.

    ``log`` names the logarithmic axes: ``""``, ``"x"``, ``"y"`` or ``"xy"``. An axis that is not logarithmic starts
    at 0. With ``whiskers`` the bounds of lines are bars at their points: bands of many lines would hide one another.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, Line] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)
    log: str = ""
    whiskers: bool = False


def draw(panels: Sequence[Panel], note: str, file: Path) -> None:
    """Draw ``panels`` side by side into ``file``, whose suffix is the format, with ``note`` in small print below."""
    figure_module = require("matplotlib.figure", "bench", "the plot")
    figure = figure_module.Figure(figsize=(5.4 * len(panels), 4.0), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _fill(axes, panel)
    figure.text(0.005, -0.04, note, fontsize=7, color="#555555")
    figure.savefig(file, dpi=150, bbox_inches="tight")


def _fill(axes: Any, panel: Panel) -> None:
    for at, (label, line) in enumerate(panel.lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        marker = MARKERS[at % len(MARKERS)]
        style = STYLES[at // len(COLOURS) % len(STYLES)]
        axes.plot(line.x, line.y, style, label=label, color=colour, marker=marker, linewidth=1.8)
        if line.low is None or line.high is None:
            continue
        if panel.whiskers:
            axes.vlines(line.x, line.low, line.high, color=colour, alpha=0.6, linewidth=1.2)
        else:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if panel.bars:
        axes.bar(list(panel.bars), list(panel.bars.values()), color=COLOURS[0])
        axes.tick_params(axis="x", labelrotation=20)
    if "x" in panel.log:
        points = sorted({x for line in panel.lines.values() for x in line.x})
        axes.set_xscale("log")
        axes.set_xticks(points, [f"{point:g}" for point in points])
        axes.set_xticks([], minor=True)
    if "y" in panel.log:
        ticker = require("matplotlib.ticker", "bench", "the plot")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    dress(axes, panel.title, panel.xlabel, panel.ylabel)
    if panel.lines:
        # Below, where no line can run.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=8)
