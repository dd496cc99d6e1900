from __future__ import annotations

from collections.abc import Callable

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from inferscale_memory import Memory
from langchain_inferscale import InferScaleStore
from tests.unit.memory.conftest import empty_database, opened, started  # noqa: F401  # fixtures
from tests.unit.memory.toys import embed


@pytest.fixture
def memory(opened: Callable[..., Memory]) -> Memory:  # noqa: F811
    return opened()


@pytest.fixture
def ours(memory: Memory) -> InferScaleStore:
    return InferScaleStore(memory)


@pytest.fixture(params=["InMemoryStore", "InferScaleStore"])
def make_store(request: pytest.FixtureRequest) -> Callable[..., BaseStore]:
    """Either store, ranking with the same embedder: ``make_store(fields=[...])``."""

    def make(fields: list[str] | None = None) -> BaseStore:
        if request.param == "InferScaleStore":
            return InferScaleStore(request.getfixturevalue("memory"), fields=fields)
        index = {"dims": 256, "embed": lambda texts: embed(texts).tolist()}
        return InMemoryStore(index={**index, **({} if fields is None else {"fields": fields})})

    return make


@pytest.fixture
def store(make_store: Callable[..., BaseStore]) -> BaseStore:
    """Either store, indexing whole values."""
    return make_store()
