"""Offering questions to a system, closed loop or open loop, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferscale_memory.errors import EngineError, InferScaleError


class WrongSourceError(EngineError):
    """Tokens of a prompt did not come from where they should: what was measured is not what the row says."""


@dataclass(frozen=True)
class Answer:
    """What one question came back with; times are of ``time.perf_counter``.

    ``retrieval`` is the seconds until the facts were there, None where they had been found beforehand. ``facts`` are
    the texts that stood in the prompt, best first. ``kv`` are tokens: ``injected``, ``local_hit``, ``prefilled``.
    """

    first: float
    last: float
    tokens: int
    kv: Mapping[str, Any]
    facts: tuple[str, ...] = ()
    retrieval: float | None = None


@dataclass(frozen=True)
class Sample:
    """One question: when it was due, and its answer or why there is none."""

    user: str
    question: str
    due: float
    answer: Answer | None = None
    error: str = ""


Ask = Callable[[str, str], Awaitable[Answer]]
"""``await ask(user, question)``."""


@dataclass
class Pass:
    """All questions of one measurement; ``seconds`` from the first question until the last answer."""

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def answered(self) -> list[tuple[Sample, Answer]]:
        """Those that were answered."""
        return [(sample, sample.answer) for sample in self.samples if sample.answer is not None]


async def closed_loop(ask: Ask, questions: Mapping[str, Sequence[str]], done: Callable[[], None]) -> Pass:
    """All users at once, each with a new question as soon as the last one is answered.

    Args:
        ask: answers one question. An ``InferScaleError`` counts as failed.
        questions: of each user, in order.
        done: called after each question.

    Raises:
        WrongSourceError: from ``ask``; everything else is stopped.
    """
    found = Pass()
    start = time.perf_counter()

    async def user(name: str, asked: Sequence[str]) -> None:
        for question in asked:
            found.samples.append(await _one(ask, name, question, time.perf_counter()))
            done()

    await _together([user(name, asked) for name, asked in questions.items()])
    found.seconds = time.perf_counter() - start
    return found


async def open_loop(ask: Ask, arrivals: Sequence[tuple[float, str, str]], done: Callable[[], None]) -> Pass:
    """Questions come when they come, whether or not earlier ones are answered.

    Latency counts from when a question was due: a system that cannot keep up cannot slow its own load down.

    Args:
        ask: as for :func:`closed_loop`.
        arrivals: seconds after the start, user, question.
        done: called after each question.

    Raises:
        WrongSourceError: as for :func:`closed_loop`.
    """
    found = Pass()
    start = time.perf_counter()

    async def one(at: float, name: str, question: str) -> None:
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        found.samples.append(await _one(ask, name, question, start + at))
        done()

    await _together([one(*arrival) for arrival in arrivals])
    found.seconds = time.perf_counter() - start
    return found


def poisson(questions: Mapping[str, Sequence[str]], rate: float, seed: int) -> list[tuple[float, str, str]]:
    """When each question comes: exponential gaps of mean ``1 / rate`` seconds, users in shuffled order.

    Every user's questions keep their order. The same arguments give the same arrivals.
    """
    order = random.Random(seed)
    names: list[str] = [name for name, asked in questions.items() for _ in asked]
    order.shuffle(names)
    left = {name: iter(asked) for name, asked in questions.items()}
    arrivals, now = [], 0.0
    for name in names:
        now += order.expovariate(rate)
        arrivals.append((now, name, next(left[name])))
    return arrivals


async def _one(ask: Ask, name: str, question: str, due: float) -> Sample:
    try:
        return Sample(name, question, due, await ask(name, question))
    except WrongSourceError:
        raise
    except InferScaleError as error:
        return Sample(name, question, due, error=f"{type(error).__name__}: {error}")


async def _together(work: Sequence[Awaitable[None]]) -> None:
    """Await all; the first error stops the others and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def latencies(passes: Sequence[Pass]) -> dict[str, list[float]]:
    """Milliseconds of each answered question, by ``ttft``, ``tpot``, ``e2el`` and ``retrieval``.

    TTFT is from when the question was due until its first token, E2EL until its last, TPOT the time of each further
    token; ``retrieval`` is the part of TTFT until the facts were there.
    """
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2el": [], "retrieval": []}
    for one in passes:
        for sample, answer in one.answered:
            found["ttft"].append(1e3 * (answer.first - sample.due))
            found["e2el"].append(1e3 * (answer.last - sample.due))
            if answer.tokens > 1:
                found["tpot"].append(1e3 * (answer.last - answer.first) / (answer.tokens - 1))
            if answer.retrieval is not None:
                found["retrieval"].append(1e3 * answer.retrieval)
    return found


def summary(passes: Sequence[Pass], ttft_limit: float) -> dict[str, Any]:
    """Figures of the passes of one condition: medians over the passes, percentiles over all their questions.

    Args:
        passes: of the same questions; one or more.
        ttft_limit: milliseconds within which a first token counts for ``goodput_qps``.
    """
    rates = [len(one.answered) / one.seconds for one in passes]
    good = [
        sum(1e3 * (answer.first - sample.due) <= ttft_limit for sample, answer in one.answered) / one.seconds
        for one in passes
    ]
    answers = [answer for one in passes for _, answer in one.answered]
    errors = [sample.error for one in passes for sample in one.samples if sample.answer is None]
    row: dict[str, Any] = {
        "requests": sum(len(one.samples) for one in passes),
        "completed": len(answers),
        "failed": len(errors),
        "seconds": _round(np.median([one.seconds for one in passes])),
        "qps": _round(np.median(rates)),
        "goodput_qps": _round(np.median(good)),
        "output_tokens_per_s": _round(
            np.median([sum(a.tokens for _, a in one.answered) / one.seconds for one in passes])
        ),
    }
    if errors:
        row["first_error"] = errors[0]
    for name in ("injected", "local_hit", "prefilled"):
        row[name] = sum(int(answer.kv[name]) for answer in answers)
    spread: dict[str, list[float]] = {"qps": [_round(value) for value in np.percentile(rates, (25, 75))]}
    for name, values in latencies(passes).items():
        if not values:
            continue
        row[f"{name}_ms"] = {
            "mean": _round(np.mean(values)),
            "median": _round(np.median(values)),
            "p99": _round(np.percentile(values, 99)),
        }
        spread[f"{name}_ms"] = [_round(value) for value in np.percentile(values, (25, 75))]
    return {**row, "spread": spread}


def overlap(passes: Sequence[Pass], ours: Sequence[Pass]) -> float | None:
    """Share of the facts that stood in our prompts which also stood in these, question by question; None: no pair."""
    wanted = {(sample.user, sample.question): set(answer.facts) for one in ours for sample, answer in one.answered}
    shares = [
        len(wanted[key] & set(answer.facts)) / len(wanted[key])
        for one in passes
        for sample, answer in one.answered
        if wanted.get(key := (sample.user, sample.question))
    ]
    return _round(np.mean(shares)) if shares else None


def _round(value: Any) -> float:
    return round(float(value), 4)
