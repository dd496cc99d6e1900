"""What the model thinks of a given answer: its distribution over the vocabulary before each token of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferscale_memory.bench.common import fresh_salt
from inferscale_memory.errors import EngineError
from inferscale_memory.serving.resolve import Plan

WHOLE = {"logprobs": -1, "flat_logprobs": True, "detokenize": False}
"""Sampling options for the whole vocabulary, without its spelling."""


@dataclass(frozen=True, eq=False)
class Forced:
    """One answer, teacher-forced.

    Attributes:
        logprobs: natural logarithms of the probabilities, ``[answer tokens, vocabulary]`` float32.
        tokens: the answer, ``[answer tokens]``.
        injected: prompt tokens whose states were injected.
        prefilled: prompt tokens that were computed.
    """

    logprobs: np.ndarray
    tokens: tuple[int, ...]
    injected: int
    prefilled: int

    @property
    def nll(self) -> float:
        """Negative log-likelihood of the answer in nats, mean per token."""
        return float(-self.logprobs[np.arange(len(self.tokens)), list(self.tokens)].astype(np.float64).mean())


def force(engine: Any, plan: Plan, answer: Sequence[int], *, inject: bool, salt: str | None = None) -> Forced:
    """Run a plan and have it answer with given tokens.

    One request where the engine was started with ``serving.forced.PROCESSOR``, else one for each token of the answer.

    Args:
        engine: a ``LocalEngine``.
        plan: the prompt.
        answer: its tokens, at least one.
        inject: ``False`` prefills the same tokens.
        salt: cache salt; by default one that no block has, so that the native prefix cache has no part in it.

    Raises:
        EngineError: injected was not exactly what the plan says.
    """
    salt = salt or fresh_salt()
    if engine.client.model_config.logits_processors:
        from inferscale_memory.serving.forced import FORCED

        extra = {FORCED: list(answer)}
        output = engine.generate(
            plan, inject=inject, salt=salt, max_tokens=len(answer), ignore_eos=True, extra_args=extra, **WHOLE
        )
        if tuple(output.outputs[0].token_ids) != tuple(answer):
            raise EngineError(f"the engine generated {list(output.outputs[0].token_ids)}, was forced to {answer}.")
        rows = _rows(output, len(answer))
    else:
        output, rows = _stepwise(engine, plan, answer, inject=inject, salt=salt)
    kv = engine.accounting(output)
    wanted = plan.injectable if inject else 0
    if kv.injected != wanted:
        raise EngineError(f"a prompt had {kv.as_dict()}, wanted {wanted} tokens injected.")
    return Forced(rows, tuple(answer), kv.injected, kv.prefilled)


def _stepwise(engine: Any, plan: Plan, answer: Sequence[int], *, inject: bool, salt: str) -> tuple[Any, np.ndarray]:
    """The same by a request for each token, behind those before it; and the first one's output, for its accounting."""
    first = None
    rows = []
    for at in range(len(answer)):
        longer = replace(plan, token_ids=[*plan.token_ids, *answer[:at]])
        output = engine.generate(longer, inject=inject, salt=salt, max_tokens=1, ignore_eos=True, **WHOLE)
        first = first or output
        rows.append(_rows(output, 1))
    return first, np.concatenate(rows)


def _rows(output: Any, count: int) -> np.ndarray:
    """Log-probabilities by token id, ``[count, vocabulary]`` float32.

    Raises:
        EngineError: a position or a part of the vocabulary is missing.
    """
    flat = output.outputs[0].logprobs
    if flat is None or len(flat) != count:
        raise EngineError(f"the engine reported {0 if flat is None else len(flat)} positions, wanted {count}.")
    ids, values = np.asarray(flat.token_ids), np.asarray(flat.logprobs, dtype=np.float32)
    rows = np.full((count, int(ids.max()) + 1), np.nan, dtype=np.float32)
    for at, (start, end) in enumerate(zip(flat.start_indices, flat.end_indices, strict=True)):
        # The sampled token may stand first and again at its place, with one value.
        rows[at, ids[start:end]] = values[start:end]
    if np.isnan(rows).any():
        raise EngineError("the engine did not report the whole vocabulary.")
    return rows


def divergence(full: Forced, other: Forced) -> float:
    """KL divergence from ``other`` to ``full`` in nats, mean over the answer's tokens.

    Sum over the vocabulary of ``p * (log p - log q)``, with p the full prefill's distribution (Kullback and Leibler,
    1951).
    """
    _check_alike(full, other)
    p, q = full.logprobs.astype(np.float64), other.logprobs.astype(np.float64)
    # A token that p rules out adds nothing, whatever q makes of it.
    ratio = np.where(np.isneginf(p), 0.0, p - np.where(np.isneginf(p), 0.0, q))
    return float((np.exp(p) * ratio).sum(axis=1).mean())


def agreement(full: Forced, other: Forced) -> float:
    """Share of the answer's tokens before which both think the same token the likeliest."""
    _check_alike(full, other)
    return float((full.logprobs.argmax(axis=1) == other.logprobs.argmax(axis=1)).mean())


def _check_alike(full: Forced, other: Forced) -> None:
    if full.tokens != other.tokens or full.logprobs.shape != other.logprobs.shape:
        raise EngineError(f"two answers of {len(full.tokens)} and {len(other.tokens)} tokens cannot be compared.")
