from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from inferscale_memory import Memory
from inferscale_memory.items.store import ItemStore
from tests.unit.memory.conftest import empty_database, opened, started  # noqa: F401  # fixtures


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(opened: Callable[..., Memory]) -> Memory:  # noqa: F811
    """A memory without an engine."""
    return opened()


@pytest.fixture
def items(memory: Memory, clock: Clock) -> ItemStore:
    return ItemStore(memory, clock=clock)
