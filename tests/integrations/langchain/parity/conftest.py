"""One script, run through ``ConversationBufferMemory`` and through ours, on the real engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import FACTS, FLUSH, remember
from langchain_classic.memory import ConversationBufferMemory
from steering import MODELS, Call, covered

from inferscale_memory import LocalEngine, Memory
from langchain_inferscale import InferScaleBufferMemory

RECENT = 2
"""Turns that ours gives word for word: of a script's second question, the exchange before it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)
            # That they are deprecated is known: they are what is to be replaced.
            item.add_marker(pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"))


@dataclass
class Side:
    """What one of the two memories made of a script."""

    outputs: list[Any]
    saved: list[tuple[str, str]]
    calls: list[Call]


@dataclass
class Stage:
    """Where scripts are run: the engine, and Alice's memory, which knows four facts already."""

    engine: LocalEngine
    memory: Memory
    user: str

    def model(self, kind: str, script: Sequence[str | None]) -> Any:
        """A model that follows ``script``."""
        return MODELS[kind](engine=self.engine, script=list(script), temperature=0, max_tokens=64)

    def theirs(self, **fields: Any) -> ConversationBufferMemory:
        """What is to be replaced."""
        return ConversationBufferMemory(**fields)

    def ours(self, **fields: Any) -> InferScaleBufferMemory:
        """What replaces it, by two lines."""
        return InferScaleBufferMemory(memory=self.memory, user_id=self.user, k=4, recent_turns=RECENT, **fields)

    async def play(
        self,
        build: Callable[[Any, Any], Any],
        memory: ConversationBufferMemory,
        model: Any,
        questions: Sequence[Any],
        *,
        awaited: bool,
    ) -> Side:
        """Ask a chain one question after the other."""
        chain = build(model, memory)
        outputs = []
        for question in questions:
            outputs.append(await chain.ainvoke(question) if awaited else chain.invoke(question))
            self.settle()
        saved = [(message.type, message.content) for message in memory.buffer_as_messages]
        return Side(outputs, saved, model.recorder.calls)

    async def both(
        self,
        build: Callable[[Any, Any], Any],
        kind: str,
        script: Sequence[str | None],
        questions: Sequence[Any],
        *,
        awaited: bool,
        **fields: Any,
    ) -> tuple[Side, Side]:
        """The same through both memories; asserts what is said of every entry point, and hands back what came out."""
        sides = []
        for memory in (self.theirs(**fields), self.ours(**fields)):
            model = self.model(kind, script)
            sides.append(await self.play(build, memory, model, questions, awaited=awaited))
        theirs, ours = sides
        assert_alike(theirs, ours, fields.get("memory_key", "history"))
        self.assert_injected(theirs, ours)
        return theirs, ours

    def assert_injected(self, theirs: Side, ours: Side) -> None:
        """Nothing for ``ConversationBufferMemory``; for ours what a handle covers, in every call."""
        assert [call.kv["injected"] for call in theirs.calls] == [0] * len(theirs.calls)
        for call in ours.calls:
            self.assert_call_injected(call)
        first = ours.calls[0].kv
        assert first["local_hit"] == 0
        assert first["injected"] > sum(len(self.engine.prompt.fact_tokens(fact)) for fact in FACTS)

    def assert_call_injected(self, call: Call) -> None:
        """Exactly what the handle covers came from KV, less what vLLM's own prefix cache still had."""
        assert len(call.recalled) == 4
        recalled = [self.memory.get(fact["id"], user_id=self.user).text for fact in call.recalled]
        reach = covered(self.engine, call)
        assert reach > sum(len(self.engine.prompt.fact_tokens(text)) for text in recalled)
        assert call.kv["injected"] == max(0, reach - call.kv["local_hit"])
        assert call.kv["fallback_reason"] is None

    def settle(self) -> None:
        """What was saved is encoded."""
        assert not self.memory.flush(FLUSH, user_id=self.user).parked


def assert_alike(theirs: Side, ours: Side, memory_key: str) -> None:
    """Same keys, same answers, same saved turns; only the memory variable differs."""
    assert theirs.saved == ours.saved
    assert len(theirs.calls) == len(ours.calls)
    for their, our in zip(theirs.outputs, ours.outputs, strict=True):
        if not isinstance(their, dict):
            assert their == our
            continue
        assert their.keys() == our.keys()
        answers = [{key: value for key, value in out.items() if key != memory_key} for out in (their, our)]
        assert answers[0] == answers[1]


@pytest.fixture
def stage(engine: LocalEngine, memory_for: Callable[..., Memory], user: str) -> Stage:
    memory = memory_for(policy="preceding:5:fact", quality="fast")
    remember(memory, FACTS, user)
    return Stage(engine, memory, user)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def awaited(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def kind(awaited: bool) -> str:
    """Chat and string model in turn: with sync and async they make two runs, not four."""
    return "llm" if awaited else "chat"


@pytest.fixture
def other_kind(kind: str) -> str:
    """The two combinations that ``kind`` leaves out."""
    return {"chat": "llm", "llm": "chat"}[kind]
