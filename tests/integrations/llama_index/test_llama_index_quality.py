"""The quality of a memory reaches everything that recalls from it through LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import FACTS, QUESTION, embed
from llama_index.core.base.llms.types import ChatMessage

from inferscale_memory import Memory
from inferscale_memory.handles import find_handles
from inferscale_memory.quality.profile import write_profiles
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock
from llama_index.retrievers.inferscale import InferScaleRetriever
from tests.unit.quality.profiles import point, profile


@pytest.fixture(params=["exact", "fast", None])
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory(home=tmp_path, embedder=embed, index="numpy", quality=request.param) as memory:
        memory.add(list(FACTS), user_id="alice")
        yield memory


def refreshed(memory: Memory, handles: list[str]) -> int:
    return sum(memory.explain(handle).refresh for handle in handles)


async def nodes(memory: Memory, **given: Any) -> int:
    found = InferScaleRetriever(memory, user_id="alice", **given).retrieve(QUESTION)
    return refreshed(memory, [node.metadata["kv_handle"] for node in found])


async def handle_of_nodes(memory: Memory, **given: Any) -> int:
    retriever = InferScaleRetriever(memory, user_id="alice", **given)
    return refreshed(memory, [retriever.handle(retriever.retrieve(QUESTION))])


async def whole_memory(memory: Memory, **given: Any) -> int:
    ours = InferScaleMemory.from_defaults(memory=memory, user_id="alice", save=False, timeout=60, **given)
    return refreshed(memory, _handles(ours.get(QUESTION)))


async def block(memory: Memory, **given: Any) -> int:
    ours = InferScaleMemoryBlock(memory=memory, user_id="alice", timeout=60, **given)
    return refreshed(memory, _handles(await ours.aget([ChatMessage(QUESTION)], session_id="s")))


def _handles(messages: list[ChatMessage]) -> list[str]:
    return [handle for message in messages for handle in find_handles(message.content or "")]


WAYS: dict[str, Callable[..., Any]] = {way.__name__: way for way in (nodes, handle_of_nodes, whole_memory, block)}


@pytest.mark.parametrize("name", WAYS)
async def test_the_quality_of_the_memory_counts(memory: Memory, name: str) -> None:
    assert await WAYS[name](memory) == {"exact": len(FACTS)}.get(str(memory.settings.quality), 0)


@pytest.mark.parametrize("name", WAYS)
async def test_a_refresh_of_one_s_own_goes_before_it(memory: Memory, name: str) -> None:
    assert await WAYS[name](memory, refresh=2) == 2
    assert await WAYS[name](memory, refresh="all") == len(FACTS)


@pytest.mark.parametrize("name", WAYS)
async def test_auto_goes_by_the_profile(memory: Memory, name: str) -> None:
    write_profiles(memory.settings.quality_file, (profile([point(4, 0, kl=0.2), point(4, 2, kl=0.01), point(4, 4)]),))
    assert await WAYS[name](memory, refresh="auto") == 2
