"""Marks every test of this folder as one that needs an engine; the engine itself is in the conftest above."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
def _environment(_engine_environment: None) -> None:
    """Also for the engines that tests start by themselves."""
