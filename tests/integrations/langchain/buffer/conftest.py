"""A memory without an engine, and buffer memories of Alice's on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from langchain_inferscale import InferScaleBufferMemory


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # That they are deprecated is known: they are what is to be replaced.
            item.add_marker(pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"))


@pytest.fixture
def memory(open_memory):
    return open_memory(None)


@pytest.fixture
def bare(memory):
    """Opens memories of Alice's on the same facts."""
    return lambda **fields: InferScaleBufferMemory(memory=memory, **{"user_id": "alice", **fields})
