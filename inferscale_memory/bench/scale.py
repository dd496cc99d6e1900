"""``inferscale bench scale``: what grows with facts in the prompt, facts of a user and users, and what does not."""

from __future__ import annotations

import json as json_module
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inferscale_memory.bench.common import (
    USER,
    Bench,
    cpu_cache,
    describe,
    fresh_salt,
    open_bench,
    progress,
    quartiles,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.panels import Line, Panel, draw
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.prompts import (
    conversation,
    prompt_length,
)
from inferscale_memory.bench.scheduling import scheduler_us
from inferscale_memory.bench.shapes import shape_of_model
from inferscale_memory.bench.standins import RandomEmbedder
from inferscale_memory.errors import EngineError, InvalidInputError
from inferscale_memory.models import resolve_model
from inferscale_memory.serving.protocol import inject_params
from inferscale_memory.serving.resolve import Plan

K = (10, 50, 100, 200, 400)
FACTS = (1, 10, 100, 1_000, 10_000)
USERS = (1, 10, 100, 1_000)
FACT_TOKENS = 20
FACTS_PER_USER = 10
FOUND = 10
"""Facts that a search of the second and third table asks for."""
EMBEDDING = 384
QUESTION = "Who of my friends and family lives near the sea, and since when?"
PROMPT_ROOM = 192
STAND_IN = f"facts are searched, not encoded; texts are embedded by a stand-in: random vectors of {EMBEDDING} elements"
PROMPT_COLUMNS = {
    "k": "facts in the prompt",
    "prompt_tokens": "tokens",
    "recall_ms": "recall ms",
    "plan_ms": "plan ms",
    "inject_ms": "inject TTFT ms",
    "plan_bytes": "plan bytes",
    "scheduler_us": "scheduler us",
}
SEARCH_COLUMNS = {"facts": "facts", "users": "users", "search_ms": "search ms", "recall_ms": "recall ms"}


def run(
    *,
    k: Sequence[int] = K,
    facts: Sequence[int] = FACTS,
    users: Sequence[int] = USERS,
    fact_tokens: int = FACT_TOKENS,
    repeat: int = 9,
    policy: str | None = None,
    keep: Path | None = None,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, print three tables, write the files.

    - facts in the prompt: really encoded ones, found by the real embedder: ``recall_ms`` (embedding, search, handle),
      ``plan_ms`` (handle to token ids and plan), ``inject_ms`` (engine only, one token, native cache cold),
      ``plan_bytes`` (what travels to the scheduler, as JSON) and ``scheduler_us`` (what it does with that).
    - facts of one user, and users of 10 facts each: ``search_ms`` and ``recall_ms`` for 10 facts, in one memory each
      without an engine, texts embedded by a stand-in.

    Args:
        k: numbers of facts in a prompt.
        facts: numbers of facts of one user.
        users: numbers of users.
        fact_tokens: length of the encoded facts in tokens.
        repeat: measurements of each, shuffled.
        policy: encoding policy; None takes the library's default.
        keep: folder for a memory that stays, whose facts need not be encoded again.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "stand_in", "prompt": [...], "facts": [...], "users": [...]}``, medians in milliseconds
        with quartiles under ``"spread"``.

    Raises:
        InvalidInputError: a number is out of range.
        UnsupportedModelError: the model cannot be injected.
        EngineError: a prompt was not injected whole.
    """
    ks, counts, crowds = (sorted(set(numbers)) for numbers in (k, facts, users))
    if min((*ks, *counts, *crowds, fact_tokens, repeat), default=0) < 1 or not (ks and counts and crowds):
        raise InvalidInputError(f"k={ks}, facts={counts}, users={crowds}, repeat={repeat}: nothing to measure.")
    check_plot(plot)
    result: dict[str, Any] = {"model": model, "stand_in": STAND_IN}
    result["facts"] = search_scale([(f"user of {count}", count) for count in counts], counts, repeat, key="facts")
    result["users"] = users_scale(crowds, repeat)
    length = prompt_length(ks[-1] * fact_tokens + PROMPT_ROOM)
    token = shape_of_model(resolve_model(model, home=home)).bytes_per_token
    with (
        cpu_cache(2 * length * token),
        open_bench(
            model, home, policy=policy, max_model_len=length, keep=keep, arena=2 * length * token + (64 << 20)
        ) as bench,
    ):
        result |= {"engine": describe(bench.engine), "prompt": measure(bench, ks, fact_tokens, repeat)}
    show(f"Facts of {fact_tokens} tokens in the prompt, medians of {repeat}:", table(PROMPT_COLUMNS, result["prompt"]))
    show(f"Facts of one user ({STAND_IN}):", table(SEARCH_COLUMNS, result["facts"]))
    show(f"Users of {FACTS_PER_USER} facts each (the same stand-in):", table(SEARCH_COLUMNS, result["users"]))
    write_json(json, result)
    if plot is not None:
        plot_scale(result, plot)
    return result


def measure(bench: Bench, ks: Sequence[int], fact_tokens: int, repeat: int) -> list[dict[str, Any]]:
    """The rows of facts in the prompt, on an engine that runs."""
    bench.remember(max(ks), fact_tokens)
    plans = {k: bench.plan(QUESTION, k) for k in ks}
    steps: dict[str, Callable[[int], float]] = {
        "recall_ms": lambda k: _timed(lambda: bench.memory.recall(QUESTION, k=k, refresh=0, user_id=USER)),
        "plan_ms": lambda k: _planning(bench, k),
        "inject_ms": lambda k: _injecting(bench, plans[k], k),
    }
    found = _shuffled(ks, steps, repeat, "measuring prompts")
    return [
        {
            "k": k,
            "prompt_tokens": len(plans[k].token_ids),
            # Less the span of the text before the facts.
            "plan_bytes": len(json_module.dumps(inject_params(plans[k].inject), separators=(",", ":"))),
            "scheduler_us": round(_scheduling(bench, plans[k]), 1),
            **medians(found[k]),
        }
        for k in ks
    ]


def _scheduling(bench: Bench, plan: Plan) -> float:
    engine = bench.engine
    return scheduler_us(plan, engine.settings.kv_folder, engine.fingerprint, engine.block_size)


def _planning(bench: Bench, k: int) -> float:
    messages = conversation(QUESTION, bench.memory.recall(QUESTION, k=k, refresh=0, user_id=USER))
    return _timed(lambda: bench.engine.plan(messages, max_tokens=1, user_id=USER))


def _injecting(bench: Bench, plan: Plan, k: int) -> float:
    start = time.perf_counter()
    output = bench.engine.generate(plan, salt=fresh_salt(), detokenize=False)
    seconds = time.perf_counter() - start
    kv = bench.engine.accounting(output)
    if kv.injected != plan.injectable:
        raise EngineError(f"a prompt of {k} facts had {kv.as_dict()}, wanted {plan.injectable} tokens injected.")
    return seconds


def users_scale(crowds: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    """Search and recall of one user among more and more others."""
    rows = []
    for crowd in crowds:
        users = [(f"user {number}", FACTS_PER_USER) for number in range(crowd)]
        row = search_scale(users, [crowd], repeat, key="users")[0]
        rows.append({**row, "facts": FACTS_PER_USER})
    return rows


def search_scale(
    users: Sequence[tuple[str, int]], counts: Sequence[int], repeat: int, *, key: str
) -> list[dict[str, Any]]:
    """Search and recall in one memory of many users, without an engine.

    Args:
        users: their ids, and how many facts each has; the first ``len(counts)`` of them are asked.
        counts: value of ``key`` in the row of each user that is asked.
        repeat: measurements of each.
        key: name of what is varied, ``"facts"`` or ``"users"``.
    """
    from inferscale_memory.memory import Memory

    with (
        tempfile.TemporaryDirectory(prefix="inferscale-bench-") as folder,
        Memory(home=folder, embedder=RandomEmbedder(EMBEDDING)) as memory,
    ):
        with progress(f"saving facts of {sum(count for _, count in users):,} in all") as bar:
            for done, (user, count) in enumerate(users, start=1):
                for start in range(0, count, 1000):
                    texts = [f"Fact {number} of {user}." for number in range(start, min(count, start + 1000))]
                    memory.add(texts, user_id=user)
                bar(done, len(users))
        memory.search(QUESTION, k=1, user_id=users[0][0])  # embeds and indexes all
        asked = dict(zip(counts, (user for user, _ in users), strict=False))
        steps: dict[str, Callable[[int], float]] = {
            "search_ms": lambda count: _timed(lambda: memory.search(QUESTION, k=FOUND, user_id=asked[count])),
            "recall_ms": lambda count: _timed(lambda: memory.recall(QUESTION, k=FOUND, user_id=asked[count])),
        }
        found = _shuffled(list(asked), steps, repeat, f"searching ({key})")
    return [{"facts": None, "users": len(users), key: count, **medians(found[count])} for count in asked]


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _shuffled(
    points: Sequence[int], steps: dict[str, Callable[[int], float]], repeat: int, label: str
) -> dict[int, dict[str, list[float]]]:
    """Seconds of every step at every point, measured in shuffled order after a discarded one of each."""
    jobs = [(point, name) for point in points for name in steps]
    order = random.Random(0)
    found: dict[int, dict[str, list[float]]] = {point: {name: [] for name in steps} for point in points}
    with progress(label) as bar:
        for turn in range(repeat + 1):
            for at, (point, name) in enumerate(order.sample(jobs, len(jobs))):
                seconds = steps[name](point)
                if turn:
                    found[point][name].append(seconds)
                bar(turn * len(jobs) + at + 1, (repeat + 1) * len(jobs))
    return found


def medians(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians in milliseconds by name, and quartiles under ``"spread"``."""
    row: dict[str, Any] = {"spread": {}}
    for name, values in seconds.items():
        low, middle, high = (round(1e3 * value, 3) for value in quartiles(values))
        row[name] = middle
        row["spread"][name] = [low, high]
    return row


def plot_scale(result: dict[str, Any], file: Path) -> None:
    """Draw the three tables side by side."""

    def lines(rows: list[dict[str, Any]], key: str, names: dict[str, str]) -> dict[str, Line]:
        return {
            label: Line(
                [row[key] for row in rows],
                [row[name] for row in rows],
                *zip(*(row["spread"][name] for row in rows), strict=True),
            )
            for name, label in names.items()
        }

    search = {"search_ms": "search", "recall_ms": "recall"}
    prompt = {"inject_ms": "inject, first token", "plan_ms": "plan", "recall_ms": "recall"}
    panels = [
        Panel("Facts in the prompt", "facts", "ms", lines(result["prompt"], "k", prompt)),
        Panel("Facts of one user", "facts", "ms", lines(result["facts"], "facts", search), log="x"),
        Panel(f"Users of {FACTS_PER_USER} facts", "users", "ms", lines(result["users"], "users", search), log="x"),
    ]
    draw(panels, f"{result['engine']}; second and third: {result['stand_in']}", file)
