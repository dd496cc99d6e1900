"""The memories that are compared: one per policy, over the same facts, on one engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inferscale_memory.bench.prompts import check_encoded, check_whole, conversation
from inferscale_memory.bench.quality.data import Conversation, Question
from inferscale_memory.bench.quality.settings import Setting
from inferscale_memory.encoding.entries import entries
from inferscale_memory.errors import EngineError
from inferscale_memory.order import Order
from inferscale_memory.scope import Scope
from inferscale_memory.serving.resolve import HandleResolver, Plan

if TYPE_CHECKING:
    from inferscale_memory.facts import Fact
    from inferscale_memory.memory import Memory
    from inferscale_memory.retrieval import ScoredFact
    from inferscale_memory.serving.engine import LocalEngine

INSTRUCTION = "Answer in as few words as possible."
ANSWER_TOKENS = 32
"""Longest greedy answer."""
BATCH = 64
REMEMBERED_SEARCHES = 256

Encoding = Callable[[str, int, int], None]
"""Called with a policy's name, the facts encoded and all facts."""


class Saved(NamedTuple):
    """One conversation as it is remembered: its facts in saved order, and by which names evidence knows each."""

    facts: tuple[Fact, ...]
    names: Mapping[str, frozenset[str]]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class _Opened:
    """A memory and its side of the engine, which resolves handles for one memory at a time."""

    memory: Memory
    resolver: HandleResolver | None


class Workbench:
    """Plans the prompts that are measured. Made by :func:`open_workbench`.

    Every plan is for the same messages: a system text with the facts, and the question with a short instruction.
    """

    def __init__(
        self, engine: LocalEngine, conversations: Mapping[str, Conversation], saved: Mapping[str, Saved],
        opened: Mapping[str, _Opened],
    ) -> None:  # fmt: skip
        self.engine = engine
        self.conversations = conversations
        self.saved = saved
        self._opened = opened
        self._finder = next(iter(opened.values())).memory
        self._search = lru_cache(REMEMBERED_SEARCHES)(self._searched)

    @property
    def embedder(self) -> str:
        """Name of the embedder that finds the facts."""
        return self._finder.retriever.embedder.id

    def recalled(self, question: Question, k: int) -> Sequence[ScoredFact]:
        """The facts that answer a question, best first; the same for every policy. Fewer than ``k`` if there are."""
        return self._search(question.conversation, question.text, k)

    def _searched(self, conversation_id: str, text: str, k: int) -> tuple[ScoredFact, ...]:
        return tuple(self._finder.search(text, k, user_id=self.conversations[conversation_id].user))

    def plan(self, question: Question, k: int, setting: Setting, order: Order = "ranked") -> Plan:
        """The prompt of a question under a setting.

        Raises:
            EngineError: some of it is not injected as the setting wants, or does not fit the model.
        """
        opened = self._opened[setting.policy]
        found = self.recalled(question, k)
        refresh = setting.refreshed(len(found))
        # Sticky order goes on from the scope's last question: each setting has a conversation of its own.
        scope = self._scope(question, f"{setting.refresh} of {k}" if order == "sticky" else None)
        handle = opened.memory.name(found, refresh, order=order, **scope)
        plan = self._planned(opened, question, handle, scope)
        what = f"question {question.id!r} with {len(found)} facts and {setting.name}"
        if refresh < len(found):
            check_whole(plan, what)
            if len(plan.inject) != 1 + len(found) - refresh:
                raise EngineError(f"{what} has {len(plan.inject) - 1} facts injected.")
        elif plan.inject or plan.dropped:
            raise EngineError(f"{what} was to be plain text: {len(plan.inject)} spans, {len(plan.dropped)} left out.")
        return plan

    def text_plan(self, question: Question, facts: Sequence[Fact]) -> Plan:
        """The prompt of a question with facts as text, in the order given; where it is too long the first ones go."""
        from inferscale_memory.retrieval import ScoredFact

        if not facts:
            return self.bare_plan(question)
        opened = next(iter(self._opened.values()))
        scope = self._scope(question)
        best_first = [ScoredFact(fact, 0.0) for fact in reversed(facts)]
        handle = opened.memory.name(best_first, len(best_first), order="ranked", **scope)
        return self._planned(opened, question, handle, scope)

    def bare_plan(self, question: Question) -> Plan:
        """The prompt of a question without facts."""
        room: dict[str, Any] = {"max_tokens_room": self._room(question), "max_model_len": self.engine.max_model_len}
        return Plan(token_ids=self.engine.prompt.assemble(_messages(question), (), **room).token_ids)

    def evidence(self, question: Question) -> tuple[Fact, ...]:
        """The facts that the data set names as the question's evidence, in saved order."""
        saved = self.saved[question.conversation]
        return tuple(fact for fact in saved.facts if not saved.names[fact.id].isdisjoint(question.evidence))

    def answer_tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer, as it stands behind the template's opening of the assistant's turn."""
        return tuple(self.engine.tokenize(text.strip()))

    def _planned(self, opened: _Opened, question: Question, handle: str, scope: Mapping[str, str]) -> Plan:
        self.engine.bind(opened.resolver)
        return self.engine.plan(_messages(question, handle), max_tokens=self._room(question), **scope)

    def _room(self, question: Question) -> int:
        return max(ANSWER_TOKENS, len(self.answer_tokens(question.answer or "")))

    def _scope(self, question: Question, session: str | None = None) -> dict[str, str]:
        user = {"user_id": self.conversations[question.conversation].user}
        return user if session is None else {**user, "session_id": session}


def _messages(question: Question, handle: str = "") -> list[dict[str, str]]:
    return conversation(f"{question.text}\n{INSTRUCTION}", handle)


@contextmanager
def open_workbench(
    engine: LocalEngine,
    home: Path,
    conversations: Sequence[Conversation],
    policies: Sequence[str],
    *,
    embedder: Any = None,
    index: Any = None,
    progress: Encoding | None = None,
) -> Iterator[Workbench]:
    """Remember conversations, each as a user of its own, and encode them under every policy.

    What the home holds already is neither saved nor encoded again.

    Args:
        engine: whose home is ``home``.
        home: folder of the memory. It must be one for measurements: a user's own is not to be written into.
        conversations: what is remembered.
        policies: by their names; at least one.
        embedder: as ``Memory`` takes it; finds the facts.
        index: as ``Memory`` takes it, by name.
        progress: called while facts are encoded.

    Raises:
        EngineError: some facts could not be encoded.
    """
    from inferscale_memory.memory import Memory

    with ExitStack() as stack:
        opened: dict[str, _Opened] = {}
        saved: dict[str, Saved] = {}
        for policy in dict.fromkeys(policies):
            memory = stack.enter_context(Memory(engine, home=home, policy=policy, embedder=embedder, index=index))
            opened[policy] = _Opened(memory, engine.resolver)
            if not saved:
                saved = {one.id: _save(memory, one) for one in conversations}
                # The others are given the same object: an embedding model is loaded once.
                embedder = memory.retriever.embedder
            _encode(memory, policy, progress)
        yield Workbench(engine, {one.id: one for one in conversations}, saved, opened)


def _encode(memory: Memory, policy: str, progress: Encoding | None) -> None:
    def show(done: int, total: int) -> None:
        if progress is not None:
            progress(policy, done, total)

    check_encoded(memory.flush(progress=show))


def _save(memory: Memory, conversation: Conversation) -> Saved:
    """Save a conversation; what is known already is found again."""
    scope = Scope.of(user_id=conversation.user)
    facts: dict[str, Fact] = {}
    names: dict[str, frozenset[str]] = {}
    errors: list[str] = []
    items = iter(conversation.items)
    while batch := list(itertools.islice(items, BATCH)):
        turns, new = entries(batch)
        result = memory.store.add(new, scope, turns=turns)
        errors += [f"{conversation.id}: item {batch[bad.index].line}: {bad.reason}" for bad in result.errors]
        refused = {bad.index for bad in result.errors}
        good = [fact for fact in new if fact.index not in refused]
        for given, fact in zip(good, result.facts, strict=True):
            item = batch[given.index or 0]
            facts.setdefault(fact.id, fact)
            names[fact.id] = names.get(fact.id, frozenset()) | {item.id, *item.turn_ids}
    return Saved(tuple(facts.values()), names, tuple(errors))
