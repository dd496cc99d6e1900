"""``inferscale bench throughput``: many users at once, by how their facts get into the prompt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inferscale_memory.bench.common import (
    Bench,
    cpu_cache,
    describe,
    open_bench,
    progress,
    show,
    table,
    write_json,
)
from inferscale_memory.bench.conditions import INJECT, MAX_QUESTIONS, MEM0, PROMPT, Asker, questions_of
from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.load import Pass, closed_loop, open_loop, overlap, poisson, summary
from inferscale_memory.bench.mem0_client import Mem0Client, mem0_python, open_mem0
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.prompts import (
    prompt_length,
)
from inferscale_memory.bench.shapes import shape_of_model
from inferscale_memory.bench.throughput_report import COLUMNS, NOTES, SOURCES, flat, plot_throughput, with_ratios
from inferscale_memory.config import load_settings
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.models import resolve_model

PASSES = ("cold", "warm", "engine")
PROMPT_ROOM = 256
"""Tokens beside the facts and the answer: system prompt, header, question."""
WARM_UP_USERS = 2


@dataclass(frozen=True)
class Workload:
    """What is asked. ``rate`` None is a closed loop, else questions per second of an open one."""

    users: tuple[int, ...] = (1, 10, 50, 100)
    k: int = 50
    questions: int = 2
    output_tokens: int = 50
    fact_tokens: int = 25
    rate: float | None = None
    ttft_limit: float = 1000.0
    passes: tuple[str, ...] = PASSES
    repeat: int = 1

    def check(self) -> None:
        """Refuse what cannot be measured before anything starts.

        Raises:
            InvalidInputError: a number is out of range, or a pass is unknown.
        """
        numbers = (*self.users, self.k, self.questions, self.output_tokens, self.fact_tokens, self.repeat)
        if not self.users or min(numbers) < 1 or (self.rate is not None and self.rate <= 0) or self.ttft_limit <= 0:
            raise InvalidInputError(f"{self}: nothing to measure; every number must be more than 0.")
        if 3 * self.questions > MAX_QUESTIONS:
            raise InvalidInputError(f"{self.questions} questions per user, wanted at most {MAX_QUESTIONS // 3}.")
        if not self.passes or not set(self.passes) <= set(PASSES):
            raise InvalidInputError(f"passes {', '.join(self.passes)!r}, wanted some of {', '.join(PASSES)}.")

    def name(self, user: int) -> str:
        """The user's id, which says how many facts he has: a kept memory may serve other runs too."""
        return f"bench-{user}-{self.k}x{self.fact_tokens}"

    def asked(self, user: int, which: str) -> list[str]:
        """Questions of a user in a pass: none is asked in two of them, but ``engine`` repeats those of ``cold``."""
        at = self.questions if which == "warm" else 0
        return questions_of(user, 3 * self.questions)[at : at + self.questions]


def run(
    *,
    workload: Workload | None = None,
    mem0: bool = False,
    mem0_interpreter: Path | None = None,
    policy: str | None = None,
    keep: Path | None = None,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, print a table, write the files.

    Conditions: ``inject`` (facts from KV), ``prompt`` (the same facts as text) and ``mem0`` (real Mem0's facts as
    text), all through one engine with its prefix cache on and a salt of its own for each user, in shuffled order.
    Passes: ``cold`` (nothing of a user in the native cache), ``warm`` (his next questions, right after), both with
    retrieval, handle, assembly and streaming inside the clock; ``engine`` (those of ``cold`` again, cold, planned
    beforehand). A prompt whose tokens did not come from where they should is an error, not a number.

    Args:
        workload: what is asked; default ``Workload()``.
        mem0: measure Mem0 too (see ``mem0_client.set_up``).
        mem0_interpreter: an interpreter that can import it, in place of the one set up.
        policy: encoding policy; None takes the library's default.
        keep: folder for a memory that stays, whose facts need not be encoded again.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        home: whose fetched models to use.

    Returns:
        ``{"model", "engine", "workload", "rows": [...], ...}``; see ``load.summary`` for a row.

    Raises:
        InvalidInputError: a number is out of range, or Mem0 is not set up.
        UnsupportedModelError: the model cannot be injected.
        EngineError: a prompt was not served the way that was to be measured.
    """
    load = workload or Workload()
    load.check()
    check_plot(plot)
    interpreter = mem0_python(home, mem0_interpreter) if mem0 or mem0_interpreter else None
    facts = max(load.users) * load.k * load.fact_tokens
    length = prompt_length(load.k * load.fact_tokens + load.output_tokens + PROMPT_ROOM)
    token = shape_of_model(resolve_model(model, home=home)).bytes_per_token
    options = {"arena": int(1.2 * facts * token) + (64 << 20), "max_num_seqs": max(16, *load.users)}
    with (
        cpu_cache(int(1.25 * max(load.users) * length * token)),
        open_bench(model, home, policy=policy, max_model_len=length, keep=keep, **options) as bench,
    ):
        result: dict[str, Any] = {"model": model, "engine": describe(bench.engine), "policy": bench.memory.policy.name}
        result |= measure(bench, load, interpreter)
    show(*(f"{key}: {text}" for key, text in NOTES.items() if key in {row["pass"] for row in result["rows"]}))
    title = f"{load.questions} questions per user, {load.k} facts of {load.fact_tokens} tokens, answers of "
    title += f"{load.output_tokens} tokens, {result['loop']}:"
    show(title, table(COLUMNS, [flat(row) for row in result["rows"]]))
    show("Where the prompt tokens came from:", table(SOURCES, result["rows"]))
    write_json(json, result)
    if plot is not None:
        plot_throughput(result, plot)
    return result


def measure(bench: Bench, load: Workload, mem0_interpreter: Path | None = None) -> dict[str, Any]:
    """All but the engine's start of :func:`run`, on a memory that may hold the users' facts already."""
    facts = remember(bench, load)
    return asyncio.run(_measure(bench, load, facts, mem0_interpreter))


def remember(bench: Bench, load: Workload) -> dict[str, list[str]]:
    """Save ``k`` facts of its own for every user and wait until all are encoded; returns them.

    Raises:
        InvalidInputError: so many different facts of that length do not exist.
        EngineError: some could not be encoded.
    """
    count = max(load.users)
    texts = make_facts(count * load.k, load.fact_tokens, lambda text: len(bench.engine.prompt.fact_tokens(text)))
    facts = {load.name(user): texts[user * load.k : (user + 1) * load.k] for user in range(count)}
    for user, own in facts.items():
        bench.memory.add(own, user_id=user)
    bench.wait_until_encoded()
    return facts


async def _measure(
    bench: Bench, load: Workload, facts: dict[str, list[str]], interpreter: Path | None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "workload": {**vars(load), "users": list(load.users), "passes": list(load.passes)},
        "loop": "closed loop" if load.rate is None else f"open loop at {load.rate:g} questions/s",
    }
    async with AsyncExitStack() as stack:
        client: Mem0Client | None = None
        if interpreter is not None:
            client = await _open_mem0(stack, bench, interpreter)
            await _fill(client, facts)
            some = next(iter(facts.values()))
            result["mem0"] = {"versions": client.versions, "pipe_ms": round(await client.pipe_ms(some), 3)}
        asker = Asker(bench, load.k, load.fact_tokens, load.output_tokens, client)
        await _warm_up(asker, load)
        result["rows"] = await _rows(asker, load)
    return result


async def _open_mem0(stack: AsyncExitStack, bench: Bench, interpreter: Path) -> Mem0Client:
    home = bench.engine.settings.home
    embedder = resolve_model(load_settings(home).embedder, home=home)
    dim = bench.memory.retriever.embedder.dim
    folder = bench.memory.settings.memory_folder / "mem0"
    return await stack.enter_async_context(open_mem0(interpreter, folder, embedder, dim))


async def _fill(client: Mem0Client, facts: dict[str, list[str]]) -> None:
    with progress("saving facts in Mem0") as bar:
        for done, (user, own) in enumerate(facts.items(), start=1):
            await client.add(user, own)
            bar(done, len(facts))


async def _warm_up(asker: Asker, load: Workload) -> None:
    """Ask questions whose times are discarded.

    Every user asks one by injection, so that all chunks are in the workers' memory, as they are right after encoding,
    though a kept memory was read from disk; a few ask by every condition, so that none bears what is done once.
    """
    names = [(user, load.name(user)) for user in range(max(load.users))]
    asker.renew([name for _, name in names])
    with progress("warming up") as bar:
        for user, name in names:
            asked = questions_of(user, 3 * load.questions)[-1]
            for condition in _conditions(asker) if user < WARM_UP_USERS else (INJECT,):
                await asker.ask(condition, name, asked)
            bar(user + 1, len(names))


def _conditions(asker: Asker) -> tuple[str, ...]:
    return (INJECT, PROMPT) if asker.mem0 is None else (INJECT, PROMPT, MEM0)


async def _rows(asker: Asker, load: Workload) -> list[dict[str, Any]]:
    """Measure every number of users under every condition, ``repeat`` times in shuffled order."""
    found: dict[tuple[int, str, str], list[Pass]] = {}
    order = random.Random(0)
    conditions = _conditions(asker)
    steps = load.repeat * len(conditions) * sum(load.users) * load.questions * len(load.passes)
    if MEM0 in conditions and "engine" in load.passes:
        steps -= load.repeat * sum(load.users) * load.questions
    with progress("measuring") as bar:
        tick = _ticker(bar, steps)
        for users in sorted(load.users):
            for turn in range(load.repeat):
                for condition in order.sample(conditions, len(conditions)):
                    for which, one in await _passes(asker, load, users, condition, turn, tick):
                        found.setdefault((users, condition, which), []).append(one)
    rows = [
        {"users": users, "pass": which, "condition": condition, **summary(passes, load.ttft_limit)}
        for (users, condition, which), passes in found.items()
    ]
    for row in rows:
        if row["condition"] == MEM0:
            key = row["users"], row["pass"]
            row["overlap"] = overlap(found[key[0], MEM0, key[1]], found[key[0], INJECT, key[1]])
    return with_ratios(rows, PASSES, conditions)


def _ticker(bar: Callable[[int, int], None], steps: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        bar(done, steps)

    return tick


async def _passes(
    asker: Asker, load: Workload, users: int, condition: str, turn: int, tick: Callable[[], None]
) -> list[tuple[str, Pass]]:
    """The passes of one condition, in the order in which they have to follow each other."""
    names = [load.name(user) for user in range(users)]
    found = []
    asker.renew(names)
    for which in PASSES:
        # Warm is what follows cold: without it there is nothing to be warm from.
        if which not in load.passes and not (which == "cold" and "warm" in load.passes):
            continue
        if which == "engine" and condition == MEM0:
            continue  # to the engine these are prompts like those of `prompt`
        questions = {load.name(user): load.asked(user, which) for user in range(users)}
        ask = partial(asker.ask, condition)
        if which == "engine":
            for name, asked in questions.items():
                for question in asked:
                    await asker.prepare(condition, name, question)
            asker.renew(names)
            ask = partial(asker.ask_engine, condition)
        seed = 1000 * users + turn
        one = await _offer(ask, load, questions, seed, tick if which in load.passes else lambda: None)
        if which in load.passes:
            found.append((which, one))
    return found


async def _offer(
    ask: Any, load: Workload, questions: dict[str, list[str]], seed: int, tick: Callable[[], None]
) -> Pass:
    if load.rate is None:
        return await closed_loop(ask, questions, tick)
    # The same arrivals for every condition.
    return await open_loop(ask, poisson(questions, load.rate, seed), tick)
