from datetime import UTC, datetime

import pytest

from inferscale_memory.db import Base, open_database
from inferscale_memory.handles import HandleBook, HandleRow, SecretRing


@pytest.fixture
def now():
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def engine(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    Base.metadata.create_all(engine, tables=[HandleRow.__table__])
    yield engine
    engine.dispose()


@pytest.fixture
def ring():
    return SecretRing(b"s" * 32)


@pytest.fixture
def book(engine, ring):
    return HandleBook(engine, ring)
