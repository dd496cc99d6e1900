"""A stage for scripts: the shared engine and a memory on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import Stage, embed_apart

from inferscale_memory import LocalEngine, Memory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture
def stage(engine: LocalEngine, tmp_path: Path, user: str) -> Iterator[Stage]:
    with Memory(
        engine,
        embedder=embed_apart,
        index="numpy",
        database_url=f"sqlite:///{tmp_path}/facts.db",
        policy="preamble",
        quality="fast",
    ) as memory:
        yield Stage(engine, memory, user)
