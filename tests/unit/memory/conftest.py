from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory import Memory
from inferscale_memory.db import open_database
from inferscale_memory.migrations import upgrade
from tests.unit.memory.toys import open_memory

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables: making one takes longer than most tests here."""
    file = tmp_path_factory.mktemp("empty") / "facts.db"
    database = open_database(f"sqlite:///{file}")
    upgrade(database)
    database.dispose()
    return file


@pytest.fixture
def opened(home: Path, empty_database: Path) -> Iterator[Callable[..., Memory]]:
    """Opens memories on this test's home; they are closed at the end."""
    (home / "memory").mkdir(mode=0o700)
    shutil.copy(empty_database, home / "memory" / "facts.db")
    memories: list[Memory] = []

    def open_one(*arguments: Any, **options: Any) -> Memory:
        memories.append(open_memory(*arguments, **options))
        return memories[-1]

    yield open_one
    for memory in memories:
        memory.close()


@pytest.fixture
def memory(opened: Callable[..., Memory]) -> Memory:
    """A memory without an engine."""
    return opened()


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code as a process of its own, on this test's home; whatever is left is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
        command = [sys.executable, "-c", code, *arguments]
        processes.append(
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def unprivileged_home(without_root, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Iterator[Path]:
    """A home that the test owns while it runs without root's power to ignore permissions."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "memory").mkdir(mode=0o700)
    shutil.copy(empty_database, folder / "memory" / "facts.db")
    monkeypatch.setenv("INFERSCALE_HOME", str(folder))
    with without_root(folder):
        yield folder
