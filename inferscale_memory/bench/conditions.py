"""The ways a question can get its facts into a prompt, each from the question as text until the last token."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from inferscale_memory.bench.common import (
    Bench,
    fresh_salt,
)
from inferscale_memory.bench.load import Answer, WrongSourceError
from inferscale_memory.bench.prompts import (
    conversation,
)
from inferscale_memory.errors import EngineError
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.serving.resolve import Plan

INJECT, PROMPT, MEM0 = "inject", "prompt", "mem0"
_ASKED = (
    "Who of my friends and family plays the {}, and since when?",
    "What do you know about the {}?",
    "Did anybody buy or sell a {}, and for how much?",
    "Which of my relatives talked about a {} last year?",
    "Is there anyone who should not be given a {}?",
    "Where did we last see the {}?",
)
_THINGS = (
    *("guitar", "bicycle", "camera", "violin", "lamp", "piano", "clock", "radio", "boat", "carpet", "telescope"),
    *("drum", "mirror", "tent", "rice", "honey", "fish", "cheese", "bread", "horse", "rabbit", "parrot", "turtle"),
)


def questions_of(user: int, count: int) -> list[str]:
    """``count`` different questions of a user, the same in every run.

    Raises:
        ValueError: there are not so many.
    """
    return [asked.format(thing) for asked, thing in random.Random(user).sample(_PAIRS, count)]


_PAIRS = [(asked, thing) for asked in _ASKED for thing in _THINGS]
MAX_QUESTIONS = len(_PAIRS)


class Mem0(Protocol):
    """What is needed of Mem0."""

    async def search(self, user: str, query: str, k: int) -> tuple[str, ...]:
        """At most ``k`` texts of a user, best first."""
        ...


def check_source(condition: str, kv: Mapping[str, Any], fact_tokens: int) -> None:
    """Whether a prompt's tokens came from where its condition says.

    Args:
        condition: ``inject``: all facts came from KV chunks or blocks of them; else none was injected.
        kv: accounting of the answer.
        fact_tokens: tokens of all facts in the prompt.

    Raises:
        WrongSourceError: they did not.
    """
    if condition != INJECT:
        if kv["injected"]:
            raise WrongSourceError(f"a prompt of the condition {condition!r} had {kv}, wanted no token injected.")
    elif kv["fallback_reason"] or kv["injected"] + kv["local_hit"] < fact_tokens:
        raise WrongSourceError(
            f"an injected prompt had {kv}, wanted all of its {fact_tokens} fact tokens from KV. Give the workers more "
            "memory (fewer users or facts), or look why chunks are missing."
        )


@dataclass
class Asker:
    """Asks through one engine. ``salts`` are those of prompts that no memory salts: one for each user.

    Args:
        bench: engine and memory, every user's facts encoded.
        k: facts per question.
        fact_tokens: tokens of one fact.
        tokens: length of every answer.
        mem0: Mem0 with the same facts, or None.
    """

    bench: Bench
    k: int
    fact_tokens: int
    tokens: int
    mem0: Mem0 | None = None
    salts: dict[str, str] = field(default_factory=dict)
    plans: dict[tuple[str, str, str], tuple[Plan, tuple[str, ...]]] = field(default_factory=dict)

    def renew(self, users: Sequence[str]) -> None:
        """From now on nothing of these users is in the native prefix cache, under any condition."""
        for user in users:
            self.bench.memory.store.raise_epoch(Scope.of(user_id=user))
        self.salts = {user: fresh_salt() for user in users}

    async def ask(self, condition: str, user: str, question: str) -> Answer:
        """One question under a condition, retrieval, assembly and streaming inside.

        Raises:
            WrongSourceError: see ``check_source``; or the facts are not ``k``, or the answer has another length.
        """
        start = time.perf_counter()
        if condition == MEM0:
            assert self.mem0 is not None
            texts = await self.mem0.search(user, question, self.k)
            found = time.perf_counter() - start
            messages = self.as_text(question, texts)
            options: dict[str, Any] = {"cache_salt": self.salts[user]}
        else:
            handle = await self.bench.memory.arecall(
                question, k=self.k, refresh=self.k if condition == PROMPT else 0, user_id=user
            )
            found = time.perf_counter() - start
            texts = tuple(scored.fact.text for scored in handle.facts)
            if len(texts) != self.k:
                raise WrongSourceError(f"{len(texts)} facts were recalled, wanted {self.k}: some are too much alike.")
            messages = conversation(question, handle)
            options = {"user_id": user}
        chunks = self.bench.engine.astream_chat(
            messages, max_tokens=self.tokens, ignore_eos=True, temperature=0.0, **options
        )
        first, last, final = await _timed(chunks)
        given = final["usage"]["completion_tokens"]
        return self._answer(condition, first, last, given, final["kv"], texts, found)

    async def prepare(self, condition: str, user: str, question: str) -> None:
        """Find facts and plan the prompt of a question beforehand, for ``ask_engine``."""
        if (condition, user, question) in self.plans:
            return
        refresh = self.k if condition == PROMPT else 0
        handle = await self.bench.memory.arecall(question, k=self.k, refresh=refresh, user_id=user)
        plan = await asyncio.to_thread(
            self.bench.engine.plan, conversation(question, handle), max_tokens=self.tokens, user_id=user
        )
        texts = tuple(scored.fact.text for scored in handle.facts)
        self.plans[condition, user, question] = (plan, texts)

    async def ask_engine(self, condition: str, user: str, question: str) -> Answer:
        """The engine's part of a question alone; raises as ``ask``."""
        plan, texts = self.plans[condition, user, question]
        engine = self.bench.engine
        outputs = engine.astream_generate(
            plan, inject=condition == INJECT, salt=self.salts[user], max_tokens=self.tokens, ignore_eos=True,
            detokenize=False,
        )  # fmt: skip
        first, last, final = await _timed(outputs, counting=True)
        given, output = final
        return self._answer(condition, first, last, given, engine.accounting(output).as_dict(), texts, None)

    def as_text(self, question: str, texts: Sequence[str]) -> list[dict[str, str]]:
        """The messages of a question with facts as text, in the place, order (best last) and form that ours have."""
        lines = "".join(f"- {text}\n" for text in reversed(texts))
        # Behind a blank line, as the prompt builder puts them: the same facts give the same tokens.
        return conversation(question, f"\n{self.bench.engine.prompt.header}{lines}")

    def _answer(
        self,
        condition: str,
        first: float,
        last: float,
        given: int,
        kv: Mapping[str, Any],
        texts: tuple[str, ...],
        found: float | None,
    ) -> Answer:
        check_source(condition, kv, self.k * self.fact_tokens)
        if given != self.tokens:
            raise WrongSourceError(f"an answer has {given} tokens, wanted {self.tokens}.")
        return Answer(first, last, given, kv, texts, found)


async def _timed(stream: AsyncIterator[Any], *, counting: bool = False) -> tuple[float, float, Any]:
    """When the first and the last part of a stream came, and the last part; with the tokens of all if ``counting``."""
    first = last = 0.0
    final: Any = None
    tokens = 0
    async for final in stream:
        last = time.perf_counter()
        first = first or last
        if counting:
            tokens += len(final.outputs[0].token_ids)
    if final is None:
        raise EngineError("a request ended without an output.")
    return first, last, (tokens, final) if counting else final
