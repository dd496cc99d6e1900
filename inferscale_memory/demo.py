"""``inferscale demo``: a conversation is remembered, the engine restarted, questions answered from KV handles."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from inferscale_memory.bench.common import TABLE_WIDTH, fresh_salt, open_engine, progress, status
from inferscale_memory.bench.exactness import compare
from inferscale_memory.encoding.policies import DEFAULT_POLICY
from inferscale_memory.errors import EncodingError, EngineError
from inferscale_memory.throwaway import throwaway_home

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory
    from inferscale_memory.serving.engine import LocalEngine

USER = "demo-user"
K = 5
POLICY = DEFAULT_POLICY.name
MAX_MODEL_LEN = 1024
MAX_TOKENS = 24
REPEAT = 5
EXACT_K = 10
SYSTEM = "Answer the question in one short sentence, from the facts."
# Short sentences with a name in each: the default model has 135 million parameters and mixes up "I" and "you".
CONVERSATION = (
    "Alice has a dog. The dog's name is Rex.",
    "Alice was born in Lisbon, Portugal.",
    "Alice is allergic to peanuts.",
    "Alice's sister Clara lives in Berlin.",
    "Alice plays the cello every Sunday.",
    "Alice's favourite food is mushroom risotto.",
    "Alice drives a green car.",
    "Alice's brother Hugo is a pilot.",
    "Alice is learning Japanese.",
    "Alice works as a nurse in Oslo.",
    "Alice's birthday is on the third of August.",
    "Alice has never learned to swim.",
)
QUESTIONS = (
    "What is the name of Alice's dog?",
    "Where was Alice born?",
    "What is the job of Alice's brother Hugo?",
    "What is Alice's favourite food?",
    "When is Alice's birthday?",
    "Where does Alice's sister Clara live?",
)


@dataclass
class Answer:
    """One question, answered from injected KV and by plain prefill of the same token ids."""

    question: str
    facts: list[str]
    """Recalled, best first."""
    injected_answer: str
    prefilled_answer: str
    prompt_tokens: int
    injected: int
    local_hit: int
    prefilled: int
    inject_ttft_ms: float = 0.0
    prefill_ttft_ms: float = 0.0


def run(*, model: str = "demo", home: Path | None = None, json: bool = False) -> dict[str, Any]:
    """Run the demonstration and show it, unless ``json``.

    Args:
        model: a demo model, a folder or a hub id.
        home: keep the memory there, under the user ``demo-user``; None takes a folder that is deleted at the end.
        json: show nothing on stdout.

    Returns:
        ``{"model", "remembered", "k", "policy", "answers": [...], "exactness": {...}}``.

    Raises:
        UnsupportedModelError: the model cannot be injected.
        EncodingError: a fact could not be encoded.
    """
    console = Console(highlight=False, quiet=json)
    console.width = max(console.width, TABLE_WIDTH)
    with _home(home) as folder:
        with open_engine(model, folder, MAX_MODEL_LEN, "show injection") as engine, _memory(engine, folder) as memory:
            remembered = _remember(memory)
        console.print(f"{remembered} messages remembered and encoded. The engine is stopped and started again.")
        with open_engine(model, folder, MAX_MODEL_LEN, "show injection") as engine:
            with _memory(engine, folder) as memory:
                answers = _answers(engine, memory)
            exactness = _exactness(engine, folder)
    result = {
        "model": model,
        "remembered": remembered,
        "k": K,
        "policy": POLICY,
        "answers": [asdict(answer) for answer in answers],
        "exactness": exactness,
    }
    console.print(answers_table(answers))
    console.print(closing(answers))
    console.print(exactness_line(exactness))
    return result


def _home(home: Path | None) -> AbstractContextManager[Path]:
    return throwaway_home(label="demo") if home is None else nullcontext(home)


def _memory(engine: LocalEngine, folder: Path, policy: str = POLICY) -> Memory:
    from inferscale_memory.memory import Memory

    return Memory(engine, home=folder, policy=policy)


def _remember(memory: Memory) -> int:
    messages = [{"role": "user", "content": text} for text in CONVERSATION]
    memory.add(messages, user_id=USER)
    with progress("encoding facts") as bar:
        report = memory.flush(progress=bar, user_id=USER)
    if report.parked:
        raise EncodingError(f"{len(report.parked)} messages were not encoded: {report.parked[0].reason}")
    return len(messages)


def _answers(engine: LocalEngine, memory: Memory) -> list[Answer]:
    with status("answering"):
        asked = [_ask(engine, memory, question) for question in QUESTIONS]
    jobs = [(at, inject) for at in range(len(asked)) for inject in (True, False)] * REPEAT
    random.Random(0).shuffle(jobs)
    seconds: dict[tuple[int, bool], list[float]] = {job: [] for job in jobs}
    with progress("measuring") as bar:
        for done, (at, inject) in enumerate(jobs):
            # A fresh salt: neither way finds anything in the native prefix cache.
            start = time.perf_counter()
            engine.generate(asked[at][1], inject=inject, salt=fresh_salt(), detokenize=False)
            seconds[at, inject].append(time.perf_counter() - start)
            bar(done + 1, len(jobs))
    for at, (answer, _) in enumerate(asked):
        answer.inject_ttft_ms = round(1e3 * statistics.median(seconds[at, True]), 1)
        answer.prefill_ttft_ms = round(1e3 * statistics.median(seconds[at, False]), 1)
    return [answer for answer, _ in asked]


def _ask(engine: LocalEngine, memory: Memory, question: str) -> tuple[Answer, Any]:
    """Answer from a handle, and again from one that has every fact refreshed, which is plain prefill."""
    handle = memory.recall(question, k=K, user_id=USER)
    as_text = memory.recall(question, k=K, refresh=K, user_id=USER)
    plan, text_plan = (engine.plan(_messages(question, one), max_tokens=MAX_TOKENS) for one in (handle, as_text))
    if plan.token_ids != text_plan.token_ids:
        raise EngineError("the injected and the prefilled prompt are not the same; the comparison would be void.")
    injected, prefilled = (_chat(engine, _messages(question, one)) for one in (handle, as_text))
    answer = Answer(
        question=question,
        facts=[hit.fact.text for hit in handle.facts],
        injected_answer=_text(injected),
        prefilled_answer=_text(prefilled),
        prompt_tokens=len(plan.token_ids),
        injected=injected["kv"]["injected"],
        local_hit=injected["kv"]["local_hit"],
        prefilled=injected["kv"]["prefilled"],
    )
    return answer, plan


def _messages(question: str, handle: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": f"{SYSTEM}\n{handle}"}, {"role": "user", "content": question}]


def _chat(engine: LocalEngine, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return engine.chat(messages, max_tokens=MAX_TOKENS, temperature=0.0, user_id=USER)


def _text(reply: Mapping[str, Any]) -> str:
    return " ".join((reply["choices"][0]["message"]["content"] or "").split())


def _exactness(engine: LocalEngine, folder: Path) -> dict[str, Any]:
    """The same facts with the exact policy, against a cold prefill over the whole vocabulary."""
    with status("comparing log-probabilities"), _memory(engine, folder, "prefix") as memory:
        handle = memory.recall(QUESTIONS[0], k=EXACT_K, refresh=0, user_id=USER)
        found = compare(engine, _messages(QUESTIONS[0], handle), user_id=USER)
        return {
            "policy": "prefix",
            "k": len(handle.facts),
            "prompt_tokens": found.prompt_tokens,
            "max_abs_dlogprob": found.distance,
            "top1_agree": found.top1,
            "floor": found.floor,
        }


def answers_table(answers: Sequence[Answer]) -> Table:
    """Both answers to each question side by side, and where the tokens came from."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    drawn.add_column("question", ratio=3)
    drawn.add_column("answer from the KV handle", ratio=4)
    drawn.add_column("answer by plain prefill", ratio=4)
    for heading in ("injected", "prefilled", "ms", "ms by prefill"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for one in answers:
        drawn.add_row(
            one.question,
            one.injected_answer,
            one.prefilled_answer,
            f"{one.injected} of {one.prompt_tokens}",
            str(one.prefilled),
            f"{one.inject_ttft_ms:.0f}",
            f"{one.prefill_ttft_ms:.0f}",
        )
    return drawn


def closing(answers: Sequence[Answer]) -> str:
    """The medians of both ways, in a line."""
    inject = statistics.median(one.inject_ttft_ms for one in answers)
    prefill = statistics.median(one.prefill_ttft_ms for one in answers)
    return (
        f"Time to first token, median: {inject:.0f} ms injected, {prefill:.0f} ms prefilled ({prefill / inject:.1f}x) "
        f"with {K} facts in the prompt; inferscale bench ttft measures more facts."
    )


def exactness_line(found: Mapping[str, Any]) -> str:
    """What injecting does to the next token's distribution where theory says nothing."""
    return (
        f"Exactness, policy {found['policy']}: {found['k']} chunks, {found['prompt_tokens']} prompt tokens, "
        f"max |d logprob| against a cold prefill {found['max_abs_dlogprob']:g} over the whole vocabulary "
        f"(a native prefix-cache hit: {found['floor']:g})."
    )
