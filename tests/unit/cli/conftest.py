"""Stand-ins of memory and engine, and ways to run a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from inferscale_memory.cli import app, recall, remember
from inferscale_memory.cli import encode as encode_module
from inferscale_memory.cli import facts as facts_module
from inferscale_memory.db import open_database
from inferscale_memory.errors import FactNotFoundError
from inferscale_memory.facts import FactStore
from inferscale_memory.handle import Handle
from inferscale_memory.migrations import upgrade
from inferscale_memory.scope import Scope

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


KV = {"injected": 20, "local_hit": 0, "prefilled": 12, "fallback_reason": None}


def make_fact(fact_id: str, text: str) -> Any:
    scope = Scope.of(user_id="alice")
    return SimpleNamespace(
        id=fact_id, text=text, scope=scope, revision=1, speaker=None, turn_ids=(), metadata={}, created_at=NOW,
        updated_at=NOW,
    )  # fmt: skip


class FakeMemory:
    """Answers of ``Memory`` that a command is to print; keeps the calls it got."""

    def __init__(self, folder: Path) -> None:
        database = open_database(f"sqlite:///{folder}/facts.db")
        upgrade(database)
        self.store = FactStore(database)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.errors: tuple[Any, ...] = ()
        self.found = [SimpleNamespace(fact=make_fact("f1", "Rex ist ein 犬 🐕"), score=0.75)]
        self.quality: str | None = None
        self.flushes = 0
        self.parked: tuple[Any, ...] = ()

    def add(self, items: Any, **options: Any) -> Any:
        self.calls.append(("add", (items,), options))
        made = tuple(make_fact(f"f{n}", str(item)) for n, item in enumerate(items, 1))
        return SimpleNamespace(facts=made, created=("f1",), errors=self.errors)

    def recall(self, query: str, **options: Any) -> Any:
        self.calls.append(("recall", (query,), options))
        return Handle("⟦kv:abc⟧", self.found)

    def list(self, **options: Any) -> Any:
        self.calls.append(("list", (), options))
        return SimpleNamespace(facts=(make_fact("f1", "[bold]one[/]"),), next_cursor="next")

    def history(self, fact_id: str, **scope: Any) -> list[Any]:
        return [SimpleNamespace(fact_id=fact_id, revision=1, text="one", at=NOW, kind="add")]

    def delete(self, fact_id: str, **scope: Any) -> Any:
        if fact_id == "gone":
            raise FactNotFoundError("no fact 'gone'")
        return make_fact(fact_id, "")

    def delete_all(self, **scope: Any) -> int:
        return 2

    def flush(self, timeout: float | None = None, progress: Callable[[int, int], None] | None = None) -> Any:
        self.flushes += 1
        if progress is not None:
            progress(1, 2)
        return SimpleNamespace(encoded=1, parked=self.parked)


class FakeEngine:
    def chat(self, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
        self.messages, self.options = messages, options
        # A library that prints must not reach stdout.
        sys.stdout.write("engine noise\n")
        message = {"role": "assistant", "content": "Rex."}
        return {"choices": [{"message": message}], "usage": {"prompt_tokens": 32}, "kv": KV}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMemory:
    fake = FakeMemory(tmp_path)

    @contextmanager
    def opened(home: Path | None, engine: Any = None, quality: str | None = None) -> Iterator[FakeMemory]:
        fake.quality = quality
        yield fake

    for module in (remember, recall, facts_module, encode_module):
        monkeypatch.setattr(module, "open_memory", opened)
    return fake


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()

    @contextmanager
    def opened(model: str | None, home: Path | None, options: Any = None) -> Iterator[FakeEngine]:
        yield fake

    for module in (recall, encode_module):
        monkeypatch.setattr(module, "open_engine", opened)
    return fake


@pytest.fixture(name="run")
def run_fixture() -> Callable[..., Any]:
    """Run a command; the result has exit_code, stdout, stderr and exception."""
    return run


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(app, list(arguments), **options)


@pytest.fixture(name="json_of")
def json_of_fixture() -> Callable[..., dict[str, Any]]:
    """Run a command with --json and read the one object on stdout."""
    return json_of


def json_of(*arguments: str, code: int = 0, **options: Any) -> dict[str, Any]:
    """The one JSON object on stdout; anything else there fails."""
    result = run(*arguments, "--json", **options)
    assert result.exit_code == code, result.output
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)
