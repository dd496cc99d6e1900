"""What the engine tests share: facts to remember, questions to ask, and distances between answers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from inferscale_memory import LocalEngine, Memory
from inferscale_memory.serving.resolve import Plan

FLUSH = 120
"""Seconds after which a test that waits for encoding has failed."""

DIMENSIONS = 512
QUESTION = "What is my dog called?"
FACTS = (
    "Alice plays the cello every Sunday morning in the old town hall.",
    "Alice was born in Lisbon and moved to Oslo in 2019.",
    "Alice is allergic to peanuts and carries an injector.",
    "The dog of Alice is called Rex and he is four years old.",
)
CITIES = ("Rome", "Oslo", "Kyoto", "Quito", "Cairo", "Perth", "Lima", "Turin", "Hanoi", "Dakar", "Minsk", "Adana")


def embed(texts: Sequence[str]) -> np.ndarray:
    """A hashed bag of words, ``[len(texts), DIMENSIONS]``: deterministic, and needs no model."""
    rows = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[0] = 0.1  # no text has the zero vector
        for word in text.lower().replace("?", " ").replace(".", " ").replace(",", " ").split():
            row[1 + int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") % (DIMENSIONS - 1)] += 1.0
    return rows


def travels(count: int, who: str = "Alice", first: int = 0) -> list[str]:
    """``count`` different facts of about 25 tokens."""
    return [
        f"{who} visited {CITIES[i % 12]} in the year {1950 + i} with friend number {i * 7} and they drank tea there."
        for i in range(first, first + count)
    ]


def remember(memory: Memory, facts: Sequence[str], user: str, **scope: str) -> list[str]:
    """Save facts and wait until they are encoded; their ids."""
    result = memory.add(list(facts), user_id=user, **scope)
    assert not result.errors
    report = memory.flush(FLUSH, user_id=user)
    assert not report.parked
    return [fact.id for fact in result.facts]


def ask(handle: str, question: str = QUESTION, system: str = "You are a helpful assistant.") -> list[dict[str, Any]]:
    """A conversation with the handle in its system message."""
    return [{"role": "system", "content": f"{system} {handle}"}, {"role": "user", "content": question}]


def text_of(answer: dict[str, Any]) -> str:
    """What the model said."""
    return answer["choices"][0]["message"]["content"]


def salted(plan: Plan, salt: str) -> Plan:
    """The same plan away from every native block of others."""
    return replace(plan, salt=salt)


def first_token(output: Any) -> np.ndarray:
    """Log-probabilities of the first generated token, by token id, ``[vocabulary]`` float64."""
    flat = output.outputs[0].logprobs
    stop = flat.end_indices[0]
    # The sampled token stands first and again at its rank; both carry the same value.
    ids, values = np.asarray(flat.token_ids[:stop]), np.asarray(flat.logprobs[:stop], dtype=np.float64)
    row = np.full(ids.max() + 1, np.nan)
    row[ids] = values
    assert not np.isnan(row).any(), "the whole vocabulary was not returned"
    return row


def distance(one: Any, other: Any) -> float:
    """Largest difference of two outputs' first-token log-probabilities over the whole vocabulary."""
    return float(np.abs(first_token(one) - first_token(other)).max())


WHOLE = {"logprobs": -1, "flat_logprobs": True, "detokenize": False}
"""Sampling options for the whole vocabulary."""


def run(engine: LocalEngine, plan: Plan, **options: Any) -> Any:
    """One plan by itself, first token over the whole vocabulary."""
    return engine.generate(plan, **{**WHOLE, **options})


def run_together(engine: LocalEngine, plans: Sequence[Plan], salts: Sequence[str], **options: Any) -> list[Any]:
    """All plans in one step: they arrive while the engine is busy with a long prompt of nobody."""
    busy = Plan(token_ids=[(7919 * index + 13) % 4096 for index in range(engine.max_model_len - 8)])

    async def together() -> list[Any]:
        before = asyncio.ensure_future(engine.agenerate(busy, inject=False, salt=secrets.token_hex(16)))
        await asyncio.sleep(0)
        jobs = [
            engine.agenerate(plan, salt=salt, **{**WHOLE, **options}) for plan, salt in zip(plans, salts, strict=True)
        ]
        outputs = await asyncio.gather(*jobs)
        await before
        return list(outputs)

    return asyncio.run(together())


def key_of(memory: Memory, fact_id: str) -> str:
    """Key of a fact's chunk."""
    assert memory.engine is not None
    return memory.ledger.lookup([fact_id], memory.engine.fingerprint, memory.policy.name)[fact_id].key


def file_of(memory: Memory, fact_id: str) -> Path:
    """The only file of a fact's chunk."""
    [path] = memory.settings.kv_folder.rglob(f"{key_of(memory, fact_id)}*")
    return path


def eventually(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for work that goes on in the background."""
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"nothing happened in {seconds} s"
        time.sleep(0.02)
