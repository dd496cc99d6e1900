"""``inferscale bench exactness``: how far injecting moves the next token's log-probabilities from a full prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferscale_memory.bench.common import (
    USER,
    Bench,
    fresh_salt,
    open_bench,
    progress,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.prompts import (
    check_whole,
    prompt_length,
)
from inferscale_memory.errors import EngineError, InvalidInputError

POLICY = "prefix"
FACT_TOKENS = 25
K = (1, 5, 20, 36, 48, 75)
"""Numbers of facts; the fourth is just under 1,000 prompt tokens, the last two are beyond."""
STABLE_TOKENS = 1_000
"""Up to here vLLM on a CPU computes a prompt to the same bits in every batch shape; beyond, means are compared."""
PROMPT_ROOM = 256
TOPICS = (
    *("guitar", "bicycle", "sister", "Lisbon", "bread", "pilot", "horse", "winter", "boat", "dentist"),
    *("garden", "piano", "coffee", "Oslo", "camera", "uncle", "nurse", "cheese", "parrot", "telescope"),
)
COLUMNS = {
    "prompt_tokens": "prompt tokens",
    "k": "facts",
    "prompts": "prompts",
    "max_abs_dlogprob": "max abs dlogprob",
    "top1_agree": "top-1 agree",
    "floor": "floor (native hit)",
}


@dataclass(frozen=True)
class Comparison:
    """One prompt: injected against a cold prefill, and a native prefix hit against the same prefill."""

    prompt_tokens: int
    distance: float
    top1: bool
    floor: float


def run(
    *,
    json: Path | None = None,
    model: str = "demo",
    home: Path | None = None,
    k: Sequence[int] = K,
    prompts: int = 20,
) -> dict[str, Any]:
    """Measure, print a table, write the file.

    Each prompt holds k separate chunks, found by ``Memory.recall`` and named by a handle, encoded with the ``prefix``
    policy: each behind everything that stands before it, so that theory says exact. The first generated token is
    compared over the whole vocabulary. Rows are means over their prompts: one prompt up to 1,000 tokens, where every
    difference must be 0, and ``prompts`` beyond, where vLLM itself moves with the shape of a batch. ``floor`` is how
    far a hit in vLLM's own prefix cache is from the same cold prefill (0 where the prompt fills no block).

    Args:
        json: file for the result.
        model: a demo model, a folder or a hub id.
        home: whose fetched models to use.
        k: numbers of facts, of 25 tokens each.
        prompts: how many prompts of more than 1,000 tokens are compared per row.

    Returns:
        ``{"model", "tap", "rows": [...]}``.

    Raises:
        UnsupportedModelError: the model cannot be injected.
        EngineError: a prompt was not served the way that was to be compared.
    """
    counts = sorted(set(k))
    if not counts or counts[0] < 1 or not 1 <= prompts <= len(TOPICS):
        raise InvalidInputError(f"k={list(k)} and {prompts} prompts; wanted k of 1 or more and 1 to {len(TOPICS)}.")
    length = prompt_length(counts[-1] * FACT_TOKENS + PROMPT_ROOM)
    with open_bench(model, home, policy=POLICY, max_model_len=length) as bench:
        rows = measure(bench, counts, prompts)
        tap = bench.engine.report.tap
        result = {"model": model, "tap": tap.tap if tap else "none", "rows": rows}
    show(f"Injected against prefilled, {model}, {result['tap']} tap, whole vocabulary:", table(COLUMNS, rows))
    write_json(json, result)
    return result


def measure(bench: Bench, counts: Sequence[int], prompts: int = 1) -> list[dict[str, Any]]:
    """The rows of :func:`run`, on an engine that runs and a memory that is empty."""
    # Some more than the longest prompt holds, so that each question gets others in another order.
    bench.remember(max(counts) + max(counts) // 4 + 1, FACT_TOKENS)
    rows = []
    with progress("comparing") as bar:
        for at, count in enumerate(counts):
            found = [_compare(bench, TOPICS[0], count)]
            if found[0].prompt_tokens > STABLE_TOKENS:
                for topic in TOPICS[1:prompts]:
                    bar(at * len(TOPICS) + len(found), len(counts) * len(TOPICS))
                    found.append(_compare(bench, topic, count))
            rows.append(row(count, found))
            bar((at + 1) * len(TOPICS), len(counts) * len(TOPICS))
    return rows


def row(k: int, found: Sequence[Comparison]) -> dict[str, Any]:
    """Means over the prompts of one row."""
    return {
        "prompt_tokens": round(float(np.mean([one.prompt_tokens for one in found]))),
        "k": k,
        "prompts": len(found),
        "max_abs_dlogprob": round(float(np.mean([one.distance for one in found])), 6),
        "top1_agree": round(float(np.mean([one.top1 for one in found])), 4),
        "floor": round(float(np.mean([one.floor for one in found])), 6),
    }


def _compare(bench: Bench, topic: str, k: int) -> Comparison:
    messages = bench.messages(f"What do you know about the {topic}?", k, refresh=0)
    return compare(bench.engine, messages, user_id=USER)


def compare(engine: Any, messages: Sequence[dict[str, str]], **scope: str) -> Comparison:
    """Prefill, inject and natively hit one prompt, which must hold a handle.

    Raises:
        EngineError: the prompt was not injected whole, or the prefix cache did not hit all of its full blocks.
    """
    plan = check_whole(engine.plan(messages, max_tokens=1, **scope), "the prompt")
    salt = fresh_salt()
    cold = _first_token(engine, plan, salt, inject=False, injected=0, hit=0)
    blocks = (len(plan.token_ids) - 1) // engine.block_size
    hit = _first_token(engine, plan, salt, inject=False, injected=0, hit=blocks * engine.block_size)
    injected = _first_token(engine, plan, fresh_salt(), inject=True, injected=plan.injectable, hit=0)
    return Comparison(
        prompt_tokens=len(plan.token_ids),
        distance=float(np.abs(injected - cold).max()),
        top1=int(injected.argmax()) == int(cold.argmax()),
        floor=float(np.abs(hit - cold).max()),
    )


def _first_token(engine: Any, plan: Any, salt: str, *, inject: bool, injected: int, hit: int) -> np.ndarray:
    """Log-probabilities of the first generated token by token id, ``[vocabulary]``."""
    output = engine.generate(plan, inject=inject, salt=salt, logprobs=-1, flat_logprobs=True, detokenize=False)
    kv = engine.accounting(output)
    if (kv.injected, kv.local_hit) != (injected, hit):
        raise EngineError(f"a prompt had {kv.as_dict()}, wanted {injected} injected and {hit} from the prefix cache.")
    flat = output.outputs[0].logprobs
    stop = flat.end_indices[0]
    # The sampled token stands first and again at its rank, with one value.
    ids = np.asarray(flat.token_ids[:stop])
    row = np.full(ids.max() + 1, -np.inf)
    row[ids] = flat.logprobs[:stop]
    if np.isinf(row).any():
        raise EngineError("the engine did not report the whole vocabulary.")
    return row
