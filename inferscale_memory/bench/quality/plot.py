"""The plot of ``inferscale bench quality``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferscale_memory.bench.panels import Line, Panel, draw
from inferscale_memory.bench.quality.settings import Setting

SMALLEST = 1e-6
"""KL below it is the engine's own noise, and has no place on a logarithmic axis."""


def plot_quality(result: Mapping[str, Any], file: Path) -> None:
    """Draw KL and gold NLL over the number of facts, a line per setting, 95 % intervals as bars.

    Settings that inject nothing are the full prefill, which the second panel has: one colour is one setting in both.

    Args:
        result: what ``command.run`` returns.
        file: where to; the suffix is the format.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(result["rows"], key=lambda row: row["k"]):
        # The default refreshes by the number of facts, and is one line nevertheless.
        label = f"{row['policy']} (default)" if row["default"] else Setting(row["policy"], row["refresh"]).name
        if row["kl"] > SMALLEST:
            groups.setdefault(label, []).append(row)
    kl = {label: _line(rows, "kl") for label, rows in groups.items()}
    nll = {label: _line(rows, "nll") for label, rows in groups.items()}
    nll["full prefill"] = _line(result["reference"], "nll")
    panels = [
        Panel(
            f"KL to full prefill, {result['model']}", "facts in the prompt", "nats per answer token",
            lines=kl, log="xy", whiskers=True,
        ),
        Panel(
            "NLL of the gold answer", "facts in the prompt", "nats per answer token", lines=nll, log="x", whiskers=True,
        ),
    ]  # fmt: skip
    draw(panels, f"{result['engine']}; {result['data']['questions']} questions, 95 % intervals", file)


def _line(rows: Sequence[Mapping[str, Any]], name: str) -> Line:
    bounds = [row[f"{name}_ci"] or (row[name], row[name]) for row in rows]
    return Line(
        x=[row["k"] for row in rows],
        y=[row[name] for row in rows],
        low=[max(low, SMALLEST) for low, _ in bounds],
        high=[high for _, high in bounds],
    )
