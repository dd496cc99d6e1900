"""``inferscale bench encode``: what it costs to encode a fact, and after how many recalls that is paid back."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferscale_memory.bench.common import (
    Bench,
    describe,
    fresh_salt,
    open_engine,
    progress,
    quartiles,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.panels import Panel, draw
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.prompts import (
    bare_plan,
    check_encoded,
    check_whole,
    conversation,
    prompt_length,
)
from inferscale_memory.encoding.policies import build_request, parse_policy, rungs_of
from inferscale_memory.errors import EngineError, InvalidInputError
from inferscale_memory.serving.resolve import Plan
from inferscale_memory.throwaway import throwaway_home

POLICIES = ("none", "preamble", "preceding:5:fact", "preceding:20:turn", "nearest:8", "ladder:5:8:20")
QUESTION = "Who of my friends and family lives near the sea, and since when?"
PROMPT_ROOM = 256
WINDOW_TOKENS = 1024
"""Room for the encoding context, so that no policy's window is cut."""
COLUMNS = {
    "policy": "policy",
    "fact_tokens": "tokens per fact",
    "prompt_tokens": "tokens run per fact",
    "ms_per_fact": "ms per fact",
    "facts_per_s": "facts/s",
    "prompt_tokens_per_s": "tokens run/s",
    "break_even_recalls": "recalls to break even",
}


class Saving(NamedTuple):
    """Milliseconds that a fact adds to a question: as text, and injected."""

    prefill: float
    inject: float


def run(
    *,
    policies: Sequence[str] = POLICIES,
    facts: int = 50,
    fact_tokens: int = 25,
    repeat: int = 3,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, print a table, write the files.

    Each round encodes the same facts for a new user, through the background encoder as an application would: from
    ``add`` until ``flush`` returns. Policies are shuffled within a round. What a fact adds to a question is measured in
    the same run: the time of a prompt with all facts less that of one without, by facts.

    - ``fact_tokens``: tokens whose states are kept; ``prompt_tokens``: what the model runs for them, context included.
    - ``break_even_recalls``: encoding a fact and injecting it so often takes as long as prefilling it so often; None
      where injecting saves nothing.

    Args:
        policies: what facts are encoded behind. Those with turns get the facts as messages of a user.
        facts: in a round, also the facts of the question.
        fact_tokens: length of a fact in tokens.
        repeat: rounds.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "prefill_ms_per_fact", "inject_ms_per_fact", "rows": [...]}``.

    Raises:
        InvalidInputError: a number or a policy cannot be used.
        UnsupportedModelError: the model cannot be injected.
        EngineError: facts were not encoded or not injected.
    """
    parsed = [parse_policy(policy) for policy in dict.fromkeys(policies)]
    if not parsed or min(facts, fact_tokens, repeat) < 1:
        raise InvalidInputError(
            f"policies={list(policies)}, {facts} facts of {fact_tokens} tokens: nothing to measure."
        )
    if any(policy.positional for policy in parsed):
        raise InvalidInputError("the policy 'prefix' encodes nothing beforehand; leave it out.")
    check_plot(plot)
    length = prompt_length(max(facts * fact_tokens, WINDOW_TOKENS) + PROMPT_ROOM)
    with (
        throwaway_home(home, label="bench") as folder,
        open_engine(model, folder, length, "be measured, it is not injected") as engine,
    ):
        result = measure(engine, folder, [policy.name for policy in parsed], facts, fact_tokens, repeat)
        result = {"model": model, "engine": describe(engine), **result}
    saving = f"{result['prefill_ms_per_fact']:.2f} ms prefilled and {result['inject_ms_per_fact']:.2f} ms injected"
    show(f"Encoding with {model}, medians of {repeat}; at question time a fact adds {saving}:")
    show(table(COLUMNS, result["rows"]))
    write_json(json, result)
    if plot is not None:
        plot_encode(result, plot)
    return result


def measure(
    engine: Any, folder: Path, policies: Sequence[str], facts: int, fact_tokens: int, repeat: int
) -> dict[str, Any]:
    """All but the engine's start of :func:`run`; databases are made in ``folder``, which is the engine's home."""
    texts = make_facts(facts, fact_tokens, lambda text: len(engine.prompt.fact_tokens(text)))
    taken: dict[str, list[float]] = {policy: [] for policy in policies}
    sizes: dict[str, tuple[float, float]] = {}
    saving = Saving(0.0, 0.0)
    order = random.Random(0)
    with progress("encoding") as bar:
        for turn in range(repeat + 1):
            for at, policy in enumerate(order.sample(list(policies), len(policies))):
                seconds, sizes[policy], measured = _round(engine, folder, policy, turn, texts, repeat)
                if turn:  # the first round is discarded
                    taken[policy].append(seconds)
                else:
                    saving = measured
                bar(turn * len(policies) + at + 1, (repeat + 1) * len(policies))
    rows = [row(policy, taken[policy], facts, sizes[policy], saving) for policy in policies]
    return {
        "prefill_ms_per_fact": round(saving.prefill, 4),
        "inject_ms_per_fact": round(saving.inject, 4),
        "facts": facts,
        "repeat": repeat,
        "rows": rows,
    }


def row(
    policy: str, seconds: Sequence[float], facts: int, sizes: tuple[float, float], saving: Saving
) -> dict[str, Any]:
    """The measurements of one policy.

    Args:
        policy: its name.
        seconds: of each round.
        facts: encoded in a round.
        sizes: tokens kept and tokens run, per fact.
        saving: what a fact adds to a question.
    """
    low, middle, high = quartiles(seconds)
    fact_tokens, prompt_tokens = sizes
    cost = 1e3 * middle / facts
    saved = saving.prefill - saving.inject
    return {
        "policy": policy,
        "fact_tokens": round(fact_tokens, 2),
        "prompt_tokens": round(prompt_tokens, 2),
        "ms_per_fact": round(cost, 3),
        "facts_per_s": round(facts / middle, 3),
        "fact_tokens_per_s": round(facts * fact_tokens / middle, 2),
        "prompt_tokens_per_s": round(facts * prompt_tokens / middle, 2),
        "break_even_recalls": round(cost / saved, 1) if saved > 0 else None,
        "spread": {"ms_per_fact": [round(1e3 * value / facts, 3) for value in (low, high)]},
    }


def _round(
    engine: Any, folder: Path, policy: str, turn: int, texts: Sequence[str], repeat: int
) -> tuple[float, tuple[float, float], Saving]:
    """Encode ``texts`` once: seconds, tokens kept and run per fact, and in the first round the saving at a question."""
    from inferscale_memory.memory import Memory

    user = f"encode {policy} {turn}"
    database = f"sqlite:///{folder / f'encode-{policy}-{turn}.db'.replace(':', '-')}"
    as_turns = ":turn" in policy
    items: Any = [{"role": "user", "content": text} for text in texts] if as_turns else list(texts)
    with Memory(engine, home=folder, policy=policy, database_url=database) as memory:
        start = time.perf_counter()
        memory.add(items, user_id=user)
        report = memory.flush(user_id=user)
        seconds = time.perf_counter() - start
        check_encoded(report)
        saving = Saving(0.0, 0.0)
        if not turn:
            saving = _saving(Bench(engine, memory), user, len(texts), max(3, repeat))
        return seconds, _sizes(memory, user, len(texts)), saving


def _sizes(memory: Any, user: str, count: int) -> tuple[float, float]:
    """Mean tokens kept and tokens run per fact, laid out again as the encoder does."""
    engine = memory.engine
    kept, run = [], []
    for fact in memory.list(user_id=user, limit=min(count, 1000)).facts:
        requests = [
            build_request(engine.prompt, rung, fact, rung.context(fact, memory.contexts), engine.max_model_len)
            for rung in rungs_of(memory.policy)
        ]
        kept.append(sum(request.end - request.start for request in requests))
        run.append(sum(len(request.token_ids) for request in requests))
    return statistics.fmean(kept), statistics.fmean(run)


def _saving(bench: Bench, user: str, k: int, repeat: int) -> Saving:
    """What each of ``k`` facts adds to the time to the first token, prefilled and injected; shuffled, medians."""
    handle = bench.memory.recall(QUESTION, k=k, refresh=0, user_id=user)
    plan = bench.engine.plan(conversation(QUESTION, handle), max_tokens=1, user_id=user)
    check_whole(plan, f"a prompt of {k} facts")
    if len(handle.facts) != k:
        raise EngineError(f"{len(handle.facts)} facts were recalled, wanted {k}: the others are too much alike.")
    bare = bare_plan(bench.engine, QUESTION)
    cases: dict[str, Callable[[], float]] = {
        "bare": lambda: _seconds(bench, bare, inject=False),
        "prefill": lambda: _seconds(bench, plan, inject=False),
        "inject": lambda: _seconds(bench, plan, inject=True),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for at in range(repeat + 1):
        for name in random.Random(at).sample(list(cases), len(cases)):
            seconds = cases[name]()
            if at:
                found[name].append(seconds)
    median = {name: statistics.median(values) for name, values in found.items()}
    return Saving(*(1e3 * (median[name] - median["bare"]) / k for name in ("prefill", "inject")))


def _seconds(bench: Bench, plan: Plan, *, inject: bool) -> float:
    start = time.perf_counter()
    output = bench.engine.generate(plan, inject=inject, salt=fresh_salt(), detokenize=False)
    seconds = time.perf_counter() - start
    kv = bench.engine.accounting(output)
    wanted = plan.injectable if inject else 0
    if (kv.injected, kv.local_hit) != (wanted, 0):
        raise EngineError(f"a prompt had {kv.as_dict()}, wanted {wanted} tokens injected.")
    return seconds


def plot_encode(result: dict[str, Any], file: Path) -> None:
    """Draw cost per fact and recalls to break even, by policy."""
    rows = result["rows"]
    cost = {row["policy"]: row["ms_per_fact"] for row in rows}
    even = {row["policy"]: row["break_even_recalls"] or 0.0 for row in rows}
    panels = [
        Panel(f"Encoding a fact, {result['model']}", "", "ms per fact", bars=cost),
        Panel("Recalls until it is paid back", "", "recalls", bars=even),
    ]
    draw(panels, result["engine"], file)
