"""``inferscale bench session``: what keeping facts in their places spares, over the questions of one conversation."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferscale_memory.bench.common import (
    Bench,
    describe,
    open_bench,
    progress,
    quartiles,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.prompts import (
    conversation,
    prompt_length,
)
from inferscale_memory.errors import EngineError, InvalidInputError
from inferscale_memory.order import Order

QUESTIONS = (
    "Who of my family and friends has animals?",
    "Which of them keeps rabbits or goats?",
    "Does anybody train a dog or a horse?",
    "Who has a parrot or a pigeon in the garden?",
    "What kind of animals live in the garden?",
    "Who is allergic to something?",
    "Is anybody allergic to nuts or honey?",
    "What food does somebody never eat?",
    "Who bought cheese, bread or fish for many people?",
    "What should I not cook for them?",
    "Who plays an instrument?",
    "Does somebody play the guitar or the violin on a Monday?",
    "Who sold a guitar, a piano or a drum?",
    "What instruments were sold, and for how many euros?",
    "Who lost an instrument?",
    "Who moved to another city?",
    "Who moved to Lisbon or Oslo, and when?",
    "Who was born in a city by the sea?",
    "Who learns a new job in another city?",
    "Where was somebody born, and in what year?",
)
"""One conversation: four subjects, five questions each."""
ORDERS: tuple[Order, ...] = ("sticky", "ranked")
POLICY = "preceding:5:fact"
PROMPT_ROOM = 256
COLUMNS = {
    "k": "facts",
    "order": "order",
    "injected": "injected",
    "local_hit": "prefix hits",
    "prefilled": "prefilled",
    "first_token_ms": "first token",
    "query_to_first_token_ms": "query to token",
}


@dataclass
class Case:
    """One order of facts at one ``k``: tokens and seconds of every question of every round."""

    k: int
    order: Order
    kv: list[dict[str, Any]] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    rounds: int = 0

    @property
    def user(self) -> str:
        """Whose memory it asks: each case has a user of its own, so that none finds another's blocks."""
        return f"bench-{self.order}"

    @property
    def scope(self) -> dict[str, Any]:
        """Keywords of its scope: a session of its own for each conversation, so nothing is placed or cached yet."""
        return {"user_id": self.user, "session_id": f"{self.k} facts, conversation {self.rounds}"}


def run(
    *,
    k: Sequence[int] = (10, 50),
    facts: int = 200,
    fact_tokens: int = 25,
    repeat: int = 3,
    model: str = "demo",
    json: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Ask the questions of one conversation, facts in sticky and in ranked order, and tell where the tokens came from.

    Both orders are asked in turn, in shuffled order within each question. Each round begins with a cold prefix cache.
    Tokens are means per question: ``injected`` from chunks, ``local_hit`` from vLLM's own prefix cache (whole blocks
    only: 128 tokens on a CPU, 16 on CUDA), ``prefilled`` computed. Times are medians in milliseconds: the answer's
    first token, and the same with embedding, search and handle.

    Args:
        k: numbers of facts recalled.
        facts: how many are remembered.
        fact_tokens: length of each in tokens.
        repeat: rounds.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "questions", "rows": [...]}``.

    Raises:
        InvalidInputError: there is nothing to measure, or there are no such facts.
        UnsupportedModelError: the model cannot be injected.
        EngineError: a question was not answered from as many facts as wanted.
    """
    counts = sorted(set(k))
    if not counts or counts[0] < 1 or counts[-1] > facts or repeat < 1 or fact_tokens < 1:
        raise InvalidInputError(
            f"k={list(k)}, facts={facts}, repeat={repeat}, fact_tokens={fact_tokens}: nothing to measure; "
            "want k of 1 to the number of facts."
        )
    length = prompt_length(counts[-1] * fact_tokens + PROMPT_ROOM)
    with open_bench(model, home, policy=POLICY, max_model_len=length) as bench:
        rows = measure(bench, counts, facts, fact_tokens, repeat)
        engine = describe(bench.engine)
    result = {"model": model, "engine": engine, "questions": len(QUESTIONS), "rows": rows}
    title = (
        f"{len(QUESTIONS)} questions of a conversation with {model}, {facts} facts of {fact_tokens} tokens; for each:"
    )
    show(title, table(COLUMNS, rows))
    write_json(json, result)
    return result


def measure(
    bench: Bench,
    counts: Sequence[int],
    facts: int,
    fact_tokens: int,
    repeat: int,
    questions: Sequence[str] = QUESTIONS,
) -> list[dict[str, Any]]:
    """The rows of :func:`run`, on an engine that runs and a memory that is empty."""
    cases = [Case(count, order) for count in counts for order in ORDERS]
    _remember(bench, {case.user for case in cases}, facts, fact_tokens)
    shuffle = random.Random(0)
    total = len(cases) * repeat * len(questions)
    done = 0
    with progress("measuring") as bar:
        for count in counts:
            _round(bench, [Case(count, order, rounds=-1) for order in ORDERS], questions[:1], shuffle)  # a warm-up
            for _ in range(repeat):
                pair = [case for case in cases if case.k == count]
                _round(bench, pair, questions, shuffle)
                done += len(pair) * len(questions)
                bar(done, total)
    return [row(case) for case in cases]


def row(case: Case) -> dict[str, Any]:
    """The measurements of one order."""
    found: dict[str, Any] = {"k": case.k, "order": case.order, "questions": len(case.kv)}
    for name in ("injected", "local_hit", "prefilled"):
        found[name] = round(statistics.fmean(kv[name] for kv in case.kv), 1)
    spread = {}
    for name, seconds in (("first_token_ms", case.answer), ("query_to_first_token_ms", case.whole)):
        low, middle, high = (round(1e3 * value, 3) for value in quartiles(seconds))
        found[name], spread[name] = middle, [low, high]
    return {**found, "spread": spread}


def _remember(bench: Bench, users: set[str], count: int, tokens: int) -> None:
    texts = make_facts(count, tokens, lambda text: len(bench.engine.prompt.fact_tokens(text)))
    for user in sorted(users):
        bench.memory.add(texts, user_id=user)
    bench.wait_until_encoded()


def _round(bench: Bench, cases: Sequence[Case], questions: Sequence[str], shuffle: random.Random) -> None:
    """One conversation per case, asked side by side from a cold prefix cache."""
    for case in cases:
        case.rounds += 1
    for question in questions:
        for case in shuffle.sample(cases, len(cases)):
            _ask(bench, case, question)


def _ask(bench: Bench, case: Case, question: str) -> None:
    start = time.perf_counter()
    handle = bench.memory.recall(question, case.k, refresh=0, order=case.order, **case.scope)
    if len(handle.facts) != case.k:
        raise EngineError(f"{len(handle.facts)} facts were recalled, wanted {case.k}: the others are too much alike.")
    found = time.perf_counter()
    reply = bench.engine.chat(conversation(question, handle), max_tokens=1, temperature=0.0, **case.scope)
    end = time.perf_counter()
    if reply["kv"]["fallback_reason"] is not None:
        raise EngineError(f"a question with {case.k} facts had {reply['kv']}, wanted every fact injected or hit.")
    case.kv.append(reply["kv"])
    case.answer.append(end - found)
    case.whole.append(end - start)
