"""What ``inferscale bench ttft`` shows: the columns of its table, and what is said below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLUMNS = {
    "k": "facts",
    "prompt_tokens": "tokens",
    "prefill_ms": "prefill",
    "inject_ms": "inject",
    "inject_host_ms": "from host",
    "inject_disk_ms": "from disk",
    "default_ms": "default",
    "balanced_ms": "balanced",
    "prefix_hit_ms": "prefix hit",
    "query_to_first_token_ms": "query to token",
    "prefill_over_inject": "prefill/inject",
    "inject_over_prefix_hit": "inject/hit",
    "default_over_inject": "default/inject",
    "balanced_over_inject": "balanced/inject",
}


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How much longer the first token takes with many facts than with few; ``None`` where there are not both."""
    some = {row["k"]: row for row in rows if row["k"]}
    if len(some) < 2:
        return None
    few, many = (5, 50) if {5, 50} <= some.keys() else (min(some), max(some))
    ratios = {name: round(some[many][f"{name}_ms"] / some[few][f"{name}_ms"], 2) for name in ("inject", "prefix_hit")}
    return {"from": few, "to": many, **ratios}


def remarks(result: dict[str, Any]) -> list[str]:
    """The default setting, and how the times grow."""
    default = f"Default setting: policy {result['policy']}, refresh {result['refresh']}."
    grown = result["growth"]
    if grown is None:
        return [default]
    times = f"inject x{grown['inject']}, prefix hit x{grown['prefix_hit']}"
    return [f"{default} From {grown['from']} to {grown['to']} facts: {times}."]
