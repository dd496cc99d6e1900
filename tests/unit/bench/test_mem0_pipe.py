"""The pipe to Mem0's process, with a Mem0 that is a dictionary."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.bench import mem0_client, mem0_worker
from inferscale_memory.errors import EngineError, InvalidInputError

WORKER = """
import importlib.metadata, sys, types
sys.path.insert(0, {folder!r})
import mem0_worker


class Mem0:
    def __init__(self):
        self.texts = {{}}

    @classmethod
    def from_config(cls, config):
        assert config["vector_store"]["config"]["path"].startswith({home!r})
        return cls()

    def add(self, text, *, user_id, infer):
        assert infer is False
        print("a notice of Mem0 on stdout")
        self.texts.setdefault(user_id, []).append(text)

    def get_all(self, *, filters, top_k):
        return {{"results": [{{"memory": text}} for text in self.texts.get(filters["user_id"], [])]}}

    def search(self, query, *, top_k, filters, threshold):
        if query == "die":
            import os
            print("killed by a question", file=sys.stderr, flush=True)
            os._exit(3)
        if query == "fail":
            raise RuntimeError("Qdrant is gone")
        if query == "network":
            import socket
            socket.create_connection(("127.0.0.1", 9))
        return {{"results": self.get_all(filters=filters, top_k=0)["results"][:top_k]}}


sys.modules["mem0"] = types.SimpleNamespace(Memory=Mem0)
importlib.metadata.version = lambda name: "1." + str(len(name))
mem0_worker.main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Mem0 whose process runs the real worker over a toy."""
    script = tmp_path / "toy.py"
    home = tmp_path / "mem0"
    script.write_text(WORKER.format(folder=str(Path(mem0_worker.__file__).parent), home=str(home)))
    monkeypatch.setattr(mem0_client, "WORKER", script)
    return home


def opened(folder: Path) -> Any:
    return mem0_client.open_mem0(Path(sys.executable), folder, "minilm", 384)


async def test_texts_are_saved_once_and_found_for_their_user(folder: Path) -> None:
    async with opened(folder) as mem0:
        assert await mem0.add("ada", ["one", "two"]) == 2
        assert await mem0.add("ada", ["two", "three"]) == 1
        assert await mem0.search("ada", "?", 2) == ("one", "two")
        assert await mem0.search("bob", "?", 2) == ()


async def test_requests_at_once_each_get_their_own_answer(folder: Path) -> None:
    async with opened(folder) as mem0:
        users = [f"user {number}" for number in range(20)]
        for user in users:
            await mem0.add(user, [f"fact of {user}"])
        found = await asyncio.gather(*(mem0.search(user, "?", 1) for user in users))
        assert found == [(f"fact of {user}",) for user in users]


async def test_the_versions_in_use_are_told(folder: Path) -> None:
    async with opened(folder) as mem0:
        assert set(mem0.versions) == {"mem0ai", "qdrant-client", "sentence-transformers", "torch"}


async def test_the_cost_of_the_pipe_can_be_measured(folder: Path) -> None:
    async with opened(folder) as mem0:
        assert await mem0.pipe_ms(["x" * 100] * 50) > 0


async def test_an_error_of_mem0_is_raised_and_the_next_request_is_answered(folder: Path) -> None:
    async with opened(folder) as mem0:
        with pytest.raises(EngineError, match="Mem0 failed: RuntimeError: Qdrant is gone"):
            await mem0.search("ada", "fail", 1)
        assert await mem0.search("ada", "?", 1) == ()


async def test_mem0_has_no_network(folder: Path) -> None:
    async with opened(folder) as mem0:
        with pytest.raises(EngineError, match="the benchmark allows no network"):
            await mem0.search("ada", "network", 1)


async def test_a_process_that_dies_fails_who_waits_with_its_last_words(folder: Path) -> None:
    async with opened(folder) as mem0:
        with pytest.raises(EngineError, match=r"Mem0's process ended: .*killed by a question"):
            await asyncio.wait_for(mem0.search("ada", "die", 1), 30)


async def test_a_process_that_does_not_start_says_why(folder: Path) -> None:
    mem0_client.WORKER.write_text("raise SystemExit('no Mem0 here')")
    with pytest.raises(EngineError, match="Mem0's process ended: no Mem0 here"):
        async with opened(folder):
            pass


def test_requests_are_answered_in_their_order_and_by_their_number() -> None:
    lines = [{"id": 7, "op": "ping", "texts": ["a"]}, {"id": 8, "op": "none"}]
    answers = io.StringIO()
    mem0_worker.serve(None, io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), answers)
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert first == {"id": 7, "texts": ["a"]}
    assert second == {"id": 8, "error": "KeyError: 'none'"}


def test_without_a_set_up_mem0_the_command_that_makes_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERSCALE_MODELS_DIR", str(tmp_path))
    with pytest.raises(InvalidInputError, match="Run: inferscale bench mem0-setup"):
        mem0_client.mem0_python(tmp_path, None)


def test_a_failing_installation_shows_what_pip_said() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no matching distribution')"]
    with pytest.raises(EngineError, match=r"pip cannot install it: .*no matching distribution"):
        mem0_client._call(command, "pip cannot install it")
