"""What ``inferscale tune`` shows: table, reason, plot, JSON, profile. No text of the memory is in any of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferscale_memory.bench.panels import Line, Panel, draw
from inferscale_memory.bench.quality.settings import ALL
from inferscale_memory.bench.tuning.choice import Choice, within
from inferscale_memory.bench.tuning.grid import Cell, Measured
from inferscale_memory.quality.profile import Bound, Profile

COLUMNS = {
    "policy": "policy",
    "refresh": "refresh",
    "k": "k",
    "n": "n",
    "kl": "KL",
    "kl_to": "up to (95 %)",
    "top1": "top-1",
    "ttft_ms": "TTFT ms",
    "ttft_over_none": "x refresh 0",
    "keeps": "keeps bound",
    "mark": "",
}


def rows_of(cells: Sequence[Cell], choice: Choice, bound: Bound) -> list[dict[str, Any]]:
    """A row per setting and number of facts, those of one number together."""
    fastest = {cell.k: cell.ttft_ms for cell in cells if cell.setting.refresh == 0}
    return [
        {
            "policy": cell.setting.policy,
            "refresh": cell.setting.refresh,
            "k": cell.k,
            "n": cell.n,
            "kl": cell.kl,
            "kl_ci": cell.kl_ci and list(cell.kl_ci),
            "top1": cell.top1,
            "top1_ci": cell.top1_ci and list(cell.top1_ci),
            "ttft_ms": round(cell.ttft_ms, 3),
            "ttft_spread_ms": [round(value, 3) for value in cell.ttft_spread],
            "ttft_over_none": round(cell.ttft_ms / fastest[cell.k], 3),
            "fact_tokens": round(cell.fact_tokens, 1),
            "refreshed_tokens": round(cell.refreshed_tokens, 1),
            "within": within(cell, bound),
            "chosen": cell.setting == choice.setting,
        }
        for cell in sorted(cells, key=lambda one: one.k)
    ]


def shown_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as the table has them."""
    return [
        {
            **row,
            "kl_to": row["kl_ci"] and row["kl_ci"][1],
            "keeps": "yes" if row["within"] else "no",
            "mark": "chosen" if row["chosen"] else "",
        }
        for row in rows
    ]


def reason(choice: Choice, bound: Bound, policies: int) -> str:
    """What was chosen, and why."""
    counts = ", ".join(str(cell.k) for cell in choice.cells)
    name = "KL" if bound.metric == "kl" else "top-1"
    found = ", ".join(f"{getattr(cell, bound.metric):.3g}" for cell in choice.cells)
    if choice.setting.refresh == ALL:
        return f"Chosen: plain prompt injection. No other setting keeps a {bound} at k = {counts}."
    best = f", by the best of {policies} policies" if policies > 1 else ""
    line = (
        f"Chosen: policy {choice.setting.policy}, refresh {choice.setting.refresh}: the fewest facts refreshed that "
        f"keep a {bound} at k = {counts}{best} ({name} {found})."
    )
    if not choice.surely:
        line += " The 95 % interval reaches beyond the bound: ask more --questions to be surer."
    return line


def usage(choice: Choice, file: Path | None) -> str:
    """How to use what was chosen."""
    policy = choice.setting.policy
    refresh = "all" if choice.setting.refresh == ALL else choice.setting.refresh
    fixed = f"Memory(engine, policy={policy!r}) with INFERSCALE_REFRESH={refresh}"
    if file is None:
        return f"Use it: {fixed}. --write saves the profile that refresh='auto' goes by."
    return (
        f"The profile is in {file}. Use it: Memory(engine, policy={policy!r}) with INFERSCALE_REFRESH=auto (or "
        f"recall(..., refresh='auto')), which keeps the bound for other k too; or {fixed}."
    )


def profiles_of(measured: Measured, bound: Bound, model: str) -> tuple[Profile, ...]:
    """A profile for every policy that was measured."""
    by_policy: dict[str, list[Cell]] = defaultdict(list)
    for cell in measured.cells:
        by_policy[cell.setting.policy].append(cell)
    return tuple(
        Profile(
            fingerprint=measured.fingerprint,
            policy=policy,
            model=model,
            engine=measured.engine,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            questions=max(cell.n for cell in found),
            bound=bound,
            tokens_per_character=measured.tokens_per_character,
            # A number of facts that is no less than k and "all" are one point.
            points=tuple({(cell.k, cell.point.refresh): cell.point for cell in found}.values()),
        )
        for policy, found in by_policy.items()
    )


def plot_tuning(result: Mapping[str, Any], file: Path) -> None:
    """Draw KL over the time to the first token, a panel for each number of facts and a line for each policy.

    Args:
        result: what ``command.run`` returns.
        file: where to; the suffix is the format.
    """
    panels = []
    for k in sorted({row["k"] for row in result["rows"]}):
        groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(result["rows"], key=lambda one: one["ttft_ms"]):
            if row["k"] == k:
                groups[row["policy"]].append(row)
        lines = {policy: Line([r["ttft_ms"] for r in rows], [r["kl"] for r in rows]) for policy, rows in groups.items()}
        chosen = [row for row in result["rows"] if row["k"] == k and row["chosen"]]
        lines["chosen"] = Line([row["ttft_ms"] for row in chosen], [row["kl"] for row in chosen])
        panels.append(
            Panel(f"{k} facts, {result['model']}", "time to the first token, ms", "KL to full prefill", lines)
        )
    draw(panels, f"{result['engine']}; {result['questions']} questions", file)
