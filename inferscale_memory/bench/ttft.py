"""``inferscale bench ttft``: how long until the first token, by how the facts get into the cache."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inferscale_memory.bench.common import (
    USER,
    Bench,
    describe,
    fresh_salt,
    open_bench,
    progress,
    quartiles,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.plots import check_plot, plot_ttft
from inferscale_memory.bench.prompts import (
    bare_plan,
    prompt_length,
)
from inferscale_memory.bench.ttft_report import COLUMNS, growth, remarks
from inferscale_memory.config import load_settings
from inferscale_memory.errors import EngineError, InvalidInputError
from inferscale_memory.quality import PRESETS
from inferscale_memory.scope import Scope
from inferscale_memory.serving.resolve import Plan

QUESTION = "Who of my friends and family lives near the sea, and since when?"
HOST_CACHE = "2GiB"
PROMPT_ROOM = 256
"""Tokens beside the facts: system prompt, header, question, answer."""
SERIES = (
    "prefill",
    "inject",
    "inject_host",
    "inject_disk",
    "default",
    "balanced",
    "prefix_hit",
    "query_to_first_token",
)
COLD = ("inject_host", "inject_disk")


@dataclass
class Case:
    """One prompt of ``k`` facts, and the seconds its first token took in each series."""

    k: int
    plan: Plan
    default: Plan
    balanced: Plan
    hit_plan: Plan
    injectable: int
    hit: int
    facts: int
    warm_salt: str = field(default_factory=fresh_salt)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})


def run(
    *,
    k: Sequence[int] = (0, 5, 10, 25, 50, 100),
    fact_tokens: int = 25,
    repeat: int = 9,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, print a table, write the files.

    Everything is measured in one run in shuffled order, after a warm-up. Each injection is cold for the native prefix
    cache, and a measurement whose tokens did not come from where they should is an error, not a number.

    - ``prefill_ms``: the whole prompt is computed.
    - ``inject_ms``: the same token ids, preamble and facts injected.
    - ``prefix_hit_ms``: the ceiling: the same question behind the nearest number of whole blocks, all of them in vLLM's
      own prefix cache, so that as many tokens are computed as when injecting. (A hit on the very prompt would compute
      what stands in its last block instead: with blocks of 128 tokens up to 128 or, by luck, fewer than the question.)
    - ``inject_host_ms``, ``inject_disk_ms``: as ``inject``, but the workers' arena has none of the facts: they come
      from host memory, or from (the system's cache of) the files, which are verified as they are read.
    - ``default_ms``: as ``inject``, with as many facts refreshed as the library's settings say.
    - ``balanced_ms``: as ``inject``, with as many facts refreshed as with ``quality="balanced"``.
    - ``load_ms``: ``inject_ms - prefix_hit_ms``.
    - ``query_to_first_token_ms``: from the question as text: embedding, search, handle, assembly, injection.

    Args:
        k: numbers of facts.
        fact_tokens: length of each fact in tokens.
        repeat: measurements per number and series.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "policy", "refresh", "rows": [...], "growth": {...}}``, times in milliseconds: medians,
        and quartiles under ``"spread"``; growth is the time at most facts over that at fewest (5 and 50 where both are
        there), of injecting and of the prefix hit.

    Raises:
        InvalidInputError: there are no such facts, or the plot's format is unknown.
        MissingExtraError: the plot needs matplotlib.
        UnsupportedModelError: the model cannot be injected.
        EngineError: a prompt was not served the way that was to be measured.
    """
    counts = sorted(set(k))
    if not counts or counts[0] < 0 or repeat < 1 or fact_tokens < 1:
        raise InvalidInputError(f"k={list(k)}, repeat={repeat}, fact_tokens={fact_tokens}: nothing to measure.")
    check_plot(plot)
    length = prompt_length(counts[-1] * fact_tokens + PROMPT_ROOM)
    settings = load_settings(home)
    with open_bench(model, home, policy=settings.policy, max_model_len=length, host_cache=HOST_CACHE) as bench:
        rows = measure(bench, counts, fact_tokens, repeat)
        result: dict[str, Any] = {
            "model": model,
            "engine": describe(bench.engine),
            "policy": settings.policy,
            "refresh": settings.refresh,
            "rows": rows,
            "growth": growth(rows),
        }
    title = f"Time to the first token of {model} in ms, medians of {repeat}, facts of {fact_tokens} tokens:"
    show(title, table(COLUMNS, rows), *remarks(result))
    write_json(json, result)
    if plot is not None:
        plot_ttft(result, plot)
    return result


def measure(bench: Bench, counts: Sequence[int], fact_tokens: int, repeat: int) -> list[dict[str, Any]]:
    """The rows of :func:`run`, on an engine that runs and a memory that is empty."""
    bench.remember(max(counts), fact_tokens)
    cases = [_case(bench, count) for count in counts]
    _measure(bench, cases, repeat)
    return [row(case, repeat) for case in cases]


def row(case: Case, repeat: int) -> dict[str, Any]:
    """The measurements of one number of facts."""
    found: dict[str, Any] = {
        "k": case.k,
        "prompt_tokens": len(case.plan.token_ids),
        "injected_tokens": case.injectable,
        "prefix_hit_tokens": case.hit,
        "repeat": repeat,
    }
    spread = {}
    for name in [name for name in SERIES if case.seconds[name]]:
        low, middle, high = (round(1e3 * value, 3) for value in quartiles(case.seconds[name]))
        found[f"{name}_ms"] = middle
        spread[f"{name}_ms"] = [low, high]
    found["load_ms"] = round(found["inject_ms"] - found["prefix_hit_ms"], 3)
    found["prefill_over_inject"] = round(found["prefill_ms"] / found["inject_ms"], 2)
    found["inject_over_prefix_hit"] = round(found["inject_ms"] / found["prefix_hit_ms"], 2)
    for name in ("default", "balanced"):
        found[f"{name}_over_inject"] = round(found[f"{name}_ms"] / found["inject_ms"], 2)
    return {**found, "spread": spread}


def _case(bench: Bench, k: int) -> Case:
    engine = bench.engine
    if k:
        plan = bench.plan(QUESTION, k, refresh=0)
        refreshed = PRESETS["balanced"].refresh
        default, balanced = (
            engine.plan(bench.messages(QUESTION, k, refresh), max_tokens=1, user_id=USER)
            for refresh in (None, refreshed)
        )
    else:
        plan = default = balanced = bare_plan(engine, QUESTION)
    injectable = plan.injectable
    ids, block = plan.token_ids, engine.block_size
    hit = round(injectable / block) * block
    hit_plan = replace(plan, token_ids=[*(ids + ids[:block])[:hit], *ids[injectable:]])
    facts = injectable - plan.inject[0].end if plan.inject else 0
    return Case(k, plan, default, balanced, hit_plan, injectable, hit, facts)


def _measure(bench: Bench, cases: Sequence[Case], repeat: int) -> None:
    steps: dict[str, Callable[[Bench, Case], float]] = {
        "prefill": _prefill,
        "inject": _inject,
        "inject_host": _inject_from_host,
        "inject_disk": _inject_from_disk,
        "default": lambda bench, case: _with(case.default, bench, case),
        "balanced": lambda bench, case: _with(case.balanced, bench, case),
        "prefix_hit": _prefix_hit,
        "query_to_first_token": _query,
    }
    if not bench.engine.memory_plan.host_bytes:
        del steps["inject_host"]
    jobs = [(case, name) for case in cases for name in steps]
    # Everything once per round, each round in another order: slow spells of the machine hit all alike.
    chance = random.Random(0)
    measured = [job for _ in range(repeat) for job in chance.sample(jobs, len(jobs))]
    with progress("measuring") as bar:
        for done, (case, name) in enumerate([*jobs, *measured], start=1):
            seconds = steps[name](bench, case)
            if done > len(jobs):
                case.seconds[name].append(seconds)
            if name in COLD:  # what it has dropped is wanted in the arena by the others
                for other in cases:  # with nothing refreshed it takes a chunk of every fact, the other plans no more
                    bench.engine.generate(other.plan, salt=fresh_salt())
            bar(done, len(jobs) + len(measured))


def _prefill(bench: Bench, case: Case) -> float:
    return _timed(bench, case, inject=False, salt=fresh_salt(), injected=0, hit=0)


def _inject(bench: Bench, case: Case) -> float:
    return _timed(bench, case, inject=True, salt=fresh_salt(), injected=case.injectable, hit=0)


def _inject_from_host(bench: Bench, case: Case) -> float:
    bench.engine.drop_chunks("arena")
    return _timed(bench, case, inject=True, salt=fresh_salt(), injected=case.injectable, hit=0, host=case.facts)


def _inject_from_disk(bench: Bench, case: Case) -> float:
    bench.engine.drop_chunks("memory")
    return _timed(bench, case, inject=True, salt=fresh_salt(), injected=case.injectable, hit=0, disk=case.facts)


def _with(plan: Plan, bench: Bench, case: Case) -> float:
    return _timed(bench, case, inject=True, salt=fresh_salt(), injected=plan.injectable, hit=0, plan=plan)


def _prefix_hit(bench: Bench, case: Case) -> float:
    # First unmeasured, so that its plainly prefilled blocks are there whatever was evicted since the last time.
    bench.engine.generate(case.hit_plan, inject=False, salt=case.warm_salt)
    return _timed(bench, case, inject=False, salt=case.warm_salt, injected=0, hit=case.hit, plan=case.hit_plan)


def _timed(
    bench: Bench,
    case: Case,
    *,
    inject: bool,
    salt: str,
    injected: int,
    hit: int,
    host: int = 0,
    disk: int = 0,
    plan: Plan | None = None,
) -> float:
    before = bench.engine.loaded_tokens()
    start = time.perf_counter()
    output = bench.engine.generate(plan or case.plan, inject=inject, salt=salt, detokenize=False)
    taken = time.perf_counter() - start
    kv, tiers = bench.engine.accounting(output), bench.engine.loaded_tokens().since(before)
    if (kv.injected, kv.local_hit, tiers.host, tiers.disk) != (injected, hit, host, disk):
        wanted = (
            f"{injected} injected, {host} of them from host memory and {disk} from disk, {hit} from the prefix cache"
        )
        raise EngineError(f"a prompt of {case.k} facts had {kv.as_dict()} and {tiers}, wanted {wanted}.")
    return taken


def _query(bench: Bench, case: Case) -> float:
    """The whole way from the question as text, one output token."""
    # A new epoch is a new salt: nothing of the last question is in the native cache.
    bench.memory.store.raise_epoch(Scope.of(user_id=USER))
    scope = {"user_id": USER} if case.k else {}
    start = time.perf_counter()
    messages = bench.messages(QUESTION, case.k)
    reply = bench.engine.chat(messages, max_tokens=1, temperature=0.0, **scope)
    taken = time.perf_counter() - start
    kv = reply["kv"]
    wanted = case.default.injectable
    if kv["injected"] != wanted:
        raise EngineError(f"a question with {case.k} facts had {kv}, wanted {wanted} tokens injected.")
    return taken
