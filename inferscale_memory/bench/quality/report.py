"""From results per question to rows, tables and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferscale_memory.bench.common import table
from inferscale_memory.bench.quality.data.types import category_order
from inferscale_memory.bench.quality.intervals import mean_interval
from inferscale_memory.bench.quality.judge import accuracy
from inferscale_memory.bench.quality.results import FULL, FULL_CONTEXT, GOLD_EVIDENCE, NO_MEMORY, Result
from inferscale_memory.bench.quality.settings import Setting

Verdicts = Mapping[tuple[str, str], bool | None]
"""Whether an answer is right, by question id and answer."""
SETTING_COLUMNS = {
    "setting": "policy, refresh",
    "k": "k",
    "n": "n",
    "kl": "KL [95 %]",
    "top1": "top-1",
    "nll": "gold NLL",
    "nll_diff": "less full's [95 %]",
    "f1": "F1",
    "injected_tokens": "injected",
    "prefilled_tokens": "prefilled",
}
TEXT_COLUMNS = {
    "name": "as plain text",
    "n": "n",
    "facts": "facts",
    "prompt_tokens": "prompt tokens",
    "nll": "gold NLL [95 %]",
    "f1": "F1 [95 %]",
}
CATEGORY_COLUMNS = {
    "setting": "policy, refresh",
    "k": "k",
    "n": "n",
    "kl": "KL",
    "top1": "top-1",
    "nll": "gold NLL",
    "f1": "F1",
}
JUDGED = {"judged": "judged"}


def rows_of(results: Sequence[Result], verdicts: Verdicts | None = None) -> list[dict[str, Any]]:
    """A row per setting and ``k``, means over its questions, in the order of the results."""
    groups: dict[tuple[str, Any, Any], list[Result]] = defaultdict(list)
    for result in results:
        if result.kl is not None:
            groups[result.policy, result.refresh, result.k].append(result)
    rows = []
    for (policy, refresh, k), found in groups.items():
        against = [one.nll - one.nll_full for one in found if one.nll_full is not None]
        rows.append(
            {
                "policy": policy,
                "refresh": refresh,
                "k": k,
                "default": Setting(policy, refresh).is_default(k),
                "n": len(found),
                **_figures(found, ("kl", "top1", "nll", "f1")),
                "nll_full": _mean([one.nll_full for one in found]),
                "nll_diff": _mean(against),
                "nll_diff_ci": _interval(against),
                "facts": _mean([one.facts for one in found]),
                "injected_tokens": _mean([one.injected for one in found]),
                "prefilled_tokens": _mean([one.prefilled for one in found]),
                "judged": _judged(found, verdicts),
                "categories": _by_category(found, ("kl", "top1", "nll", "f1"), verdicts),
            }
        )
    return rows


def references_of(results: Sequence[Result], verdicts: Verdicts | None = None) -> list[dict[str, Any]]:
    """A row per ``k``: the full prefill that settings are compared with."""
    groups: dict[int, list[Result]] = defaultdict(list)
    for result in results:
        if result.policy == FULL and result.k is not None:
            groups[result.k].append(result)
    return [{"k": k, "top1": 1.0, **text_row(found, verdicts)} for k, found in sorted(groups.items())]


def ceilings_of(results: Sequence[Result], verdicts: Verdicts | None = None) -> dict[str, dict[str, Any]]:
    """``{"ceilings": ..., "floor": ...}``; empty objects where they were not measured."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.policy].append(result)
    above = {kind: text_row(groups[kind], verdicts) for kind in (FULL_CONTEXT, GOLD_EVIDENCE) if groups[kind]}
    below = {kind: text_row(groups[kind], verdicts) for kind in (NO_MEMORY,) if groups[kind]}
    return {"ceilings": above, "floor": below}


def text_row(found: Sequence[Result], verdicts: Verdicts | None = None) -> dict[str, Any]:
    """Means over prompts of plain text."""
    return {
        "n": len(found),
        **_figures(found, ("nll", "f1")),
        "facts": _mean([one.facts for one in found]),
        "facts_left_out": _mean([one.facts_left_out for one in found]),
        "prompt_tokens": _mean([one.prompt_tokens for one in found]),
        "judged": _judged(found, verdicts),
        "categories": _by_category(found, ("nll", "f1"), verdicts),
    }


def _figures(found: Sequence[Result], names: Sequence[str]) -> dict[str, Any]:
    """Mean and interval of each figure."""
    figures: dict[str, Any] = {}
    for name in names:
        values = [getattr(one, name) for one in found]
        figures[name], figures[f"{name}_ci"] = _mean(values), _interval(values)
    return figures


def _by_category(found: Sequence[Result], names: Sequence[str], verdicts: Verdicts | None) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for one in found:
        groups[one.category].append(one)
    return {
        name: {
            "n": len(groups[name]),
            **{figure: _mean([getattr(one, figure) for one in groups[name]]) for figure in names},
            "judged": _judged(groups[name], verdicts),
        }
        for name in category_order(list(groups))
    }


def _judged(found: Sequence[Result], verdicts: Verdicts | None) -> float | None:
    if verdicts is None:
        return None
    share = accuracy(verdicts.get((one.question, one.answer)) for one in found if one.answer is not None)
    return None if share is None else round(share, 6)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing: a mean over other questions cannot be compared."""
    given = [value for value in values if value is not None]
    return round(float(np.mean(given)), 6) if given and len(given) == len(values) else None


def _interval(values: Sequence[float | None]) -> list[float] | None:
    given = [value for value in values if value is not None]
    found = mean_interval(given) if len(given) == len(values) else None
    return None if found is None else [round(bound, 6) for bound in found]


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(result: Mapping[str, Any]) -> list[Any]:
    """What is shown of a result: titles and Markdown tables."""
    rows = result["rows"]
    judged = JUDGED if any(row["judged"] is not None for row in rows) else {}
    parts: list[Any] = [
        f"{result['model']}, {result['data']['questions']} questions, {result['order']} order; KL to the full prefill "
        "of the same tokens and gold NLL in nats per answer token; * is the library's default:",
        table({**SETTING_COLUMNS, **judged}, [_shown_setting(row) for row in rows]),
        "The same facts and other contexts as plain text:",
        table({**TEXT_COLUMNS, **judged}, _shown_texts(result)),
    ]
    names = result["data"]["categories"]
    if len(names) > 1:
        columns = {"setting": "policy, refresh", "k": "k", **names}
        parts += [
            "KL by category (questions):",
            table(columns, [_shown_categories(row) for row in rows]),
        ]
    for key, label in names.items():
        if "multi-hop" in label:
            apart = [{**row["categories"][key], "setting": _label(row), "k": row["k"]} for row in rows]
            parts += [f"{label[0].upper()}{label[1:]} questions apart:", table({**CATEGORY_COLUMNS, **judged}, apart)]
    if left_out := result["data"]["left_out"]:
        parts.append(f"{len(left_out)} items of the data were left out, the first: {left_out[0]}")
    return parts


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['policy']}, {row['refresh']}{' *' if row['default'] else ''}"


def _shown_setting(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "setting": _label(row),
        "kl": with_interval(row["kl"], row["kl_ci"]),
        "nll_diff": with_interval(row["nll_diff"], row["nll_diff_ci"]),
        "injected_tokens": round(row["injected_tokens"]),
        "prefilled_tokens": round(row["prefilled_tokens"]),
    }


def _shown_texts(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    named = {f"k = {row['k']}": row for row in result["reference"]}
    for kind, row in (*result["ceilings"].items(), *result["floor"].items()):
        named[kind.replace("_", " ")] = row
    return [
        {
            **row,
            "name": name,
            "prompt_tokens": round(row["prompt_tokens"]),
            "nll": with_interval(row["nll"], row["nll_ci"]),
            "f1": with_interval(row["f1"], row["f1_ci"]),
        }
        for name, row in named.items()
    ]


def _shown_categories(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: f"{one['kl']:.3g} ({one['n']})" for key, one in row["categories"].items()}
    return {"setting": _label(row), "k": row["k"], **found}


def with_interval(value: float | None, interval: Sequence[float] | None) -> str | None:
    """A mean with its interval, for a cell."""
    if value is None:
        return None
    return f"{value:.3g}" if interval is None else f"{value:.3g} [{interval[0]:.3g}, {interval[1]:.3g}]"
