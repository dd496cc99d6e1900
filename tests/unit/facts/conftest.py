from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from inferscale_memory import migrations
from inferscale_memory.db import open_database
from inferscale_memory.facts import FactStore
from inferscale_memory.scope import Scope


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{path}")
    migrations.upgrade(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> FactStore:
    return FactStore(engine)


@pytest.fixture
def alice() -> Scope:
    return Scope.of(user_id="alice")
