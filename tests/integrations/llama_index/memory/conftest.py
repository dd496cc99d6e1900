"""A memory without an engine, and LlamaIndex memories of Alice's on it."""

from __future__ import annotations

import shutil

import pytest

from inferscale_memory.db import open_database
from inferscale_memory.migrations import upgrade
from llama_index.memory.inferscale import InferScaleMemory


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database with its tables: making one takes longer than most tests here."""
    file = tmp_path_factory.mktemp("empty") / "facts.db"
    database = open_database(f"sqlite:///{file}")
    upgrade(database)
    database.dispose()
    return file


@pytest.fixture
def open_bare(open_memory, empty_database, tmp_path):
    """``open_bare(name)`` opens a memory without an engine on the database of that name, a new one at first."""

    def open_bare(name="facts", **options):
        file = tmp_path / f"{name}.db"
        if not file.exists():
            shutil.copy(empty_database, file)
        return open_memory(None, database_url=f"sqlite:///{file}", **options)

    return open_bare


@pytest.fixture
def long_term(open_bare):
    return open_bare()


@pytest.fixture
def make(long_term):
    """Makes memories of Alice's on the same facts."""
    return lambda **fields: InferScaleMemory.from_defaults(memory=long_term, **{"user_id": "alice", **fields})


@pytest.fixture
def searches(long_term, monkeypatch):
    """The queries that were searched for."""
    asked = []
    recall = long_term.recall
    monkeypatch.setattr(long_term, "recall", lambda query, *a, **k: asked.append(query) or recall(query, *a, **k))
    return asked
