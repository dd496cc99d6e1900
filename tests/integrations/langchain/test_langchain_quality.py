"""The quality of a memory reaches everything that recalls from it through LangChain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_steps import says
from asking import FACTS, QUESTION, embed
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import HumanMessage

from inferscale_memory import Memory
from inferscale_memory.handles import find_handles
from inferscale_memory.quality import untuned_refresh
from inferscale_memory.quality.profile import write_profiles
from langchain_inferscale import (
    InferScaleBufferMemory,
    InferScaleMemoryMiddleware,
    InferScaleRetriever,
    InferScaleStore,
)
from langchain_inferscale.context import placed_handles
from tests.unit.quality.profiles import point, profile

WAYS: dict[str, Callable[..., int]] = {}


def way(function: Callable[..., int]) -> Callable[..., int]:
    WAYS[function.__name__] = function
    return function


@pytest.fixture(params=["exact", "fast", None])
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory(home=tmp_path, embedder=embed, index="numpy", quality=request.param) as memory:
        memory.add(list(FACTS), user_id="alice")
        yield memory


def refreshed(memory: Memory, handles: list[str]) -> int:
    return sum(memory.explain(handle).refresh for handle in handles)


@way
def retriever(memory: Memory, **given: Any) -> int:
    documents = InferScaleRetriever(memory=memory, user_id="alice", **given).invoke(QUESTION)
    return refreshed(memory, [document.metadata["kv_handle"] for document in documents])


@way
def middleware(memory: Memory, **given: Any) -> int:
    seen: list[str] = []

    @wrap_model_call(name="noting")
    def noting(request: Any, handler: Any) -> Any:
        seen.extend(placed_handles())
        return handler(request)

    remembering = InferScaleMemoryMiddleware(memory, save=False, timeout=60, **given)
    agent = create_agent(says("Rex."), [], middleware=[remembering, noting])
    agent.invoke({"messages": [HumanMessage(QUESTION)]}, {"configurable": {"user_id": "alice"}})
    return refreshed(memory, seen)


@way
def buffer_memory(memory: Memory, **given: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated is what it takes the place of
        buffer = InferScaleBufferMemory(memory=memory, user_id="alice", recent_turns=0, **given)
    buffer.save_context({"input": "Hello."}, {"output": "Hello, Alice."})
    text = str(buffer.load_memory_variables({"input": QUESTION}))
    return refreshed(memory, list(find_handles(text)))


@way
def store(memory: Memory, **given: Any) -> int:
    items = InferScaleStore(memory, fields=["text"])
    for at, text in enumerate(FACTS):
        items.put(("alice",), str(at), {"text": text})
    return refreshed(memory, [items.recall(("alice",), QUESTION, 4, **given)])


@pytest.mark.parametrize("name", WAYS)
def test_the_quality_of_the_memory_counts(memory: Memory, name: str) -> None:
    found = WAYS[name](memory)
    if memory.settings.quality == "exact":
        assert found >= len(FACTS)
    elif memory.settings.quality == "fast":
        assert found == memory.settings.refresh == 0
    else:
        # By the number of facts: the buffer also finds the two messages that it has just saved.
        assert memory.settings.refresh == "auto"
        assert found == untuned_refresh(len(FACTS) + (2 if name == "buffer_memory" else 0))


@pytest.mark.parametrize("name", WAYS)
def test_a_refresh_of_one_s_own_goes_before_it(memory: Memory, name: str) -> None:
    assert WAYS[name](memory, refresh=2) == 2
    assert WAYS[name](memory, refresh="all") >= len(FACTS)


@pytest.mark.parametrize("name", WAYS)
def test_auto_goes_by_the_profile(memory: Memory, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profiles(memory.settings.quality_file, (profile([point(4, 0, kl=0.2), point(4, 2, kl=0.01), point(4, 4)]),))
    # 0.05 lies between the points, so two facts are needed.
    assert WAYS[name](memory, refresh="auto") == 2
