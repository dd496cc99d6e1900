from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from plumbing import World, open_world

from inferscale_memory.db import open_database
from inferscale_memory.migrations import upgrade


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables and nothing in it: making one takes longer than most tests here."""
    folder = tmp_path_factory.mktemp("empty")
    database = open_database(f"sqlite:///{folder / 'facts.db'}")
    upgrade(database)
    database.dispose()
    return folder / "facts.db"


@pytest.fixture
def opened(tmp_path: Path, empty_database: Path) -> Iterator[Callable[..., World]]:
    """Opens worlds on one folder; their encoders are stopped at the end."""
    shutil.copy(empty_database, tmp_path / "facts.db")
    worlds: list[World] = []

    def open_one(policy: str = "preceding:2:fact", **options) -> World:
        worlds.append(open_world(tmp_path, policy, **options))
        return worlds[-1]

    yield open_one
    for world in worlds:
        world.encoder.stop(timeout=1)


@pytest.fixture
def world(opened: Callable[..., World]) -> World:
    """A world whose encoder has not started."""
    return opened()
