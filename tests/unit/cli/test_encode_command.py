"""encode: a file in, idempotent batches, what is left over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferscale_memory.errors import FlushTimeoutError

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]
FakeMemory = Any
FakeEngine = Any


def test_ask_goes_on_when_facts_are_not_encoded_in_time(
    run: Run, memory: FakeMemory, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(timeout: float | None = None) -> None:
        raise FlushTimeoutError("3 facts are waiting.")

    monkeypatch.setattr(memory, "flush", late)
    result = run("ask", "dog?", "--user", "alice")
    assert result.exit_code == 0
    assert "3 facts are waiting. Facts not encoded yet are prefilled." in result.stderr


def test_encode_saves_a_file_and_waits_for_the_encoding(
    json_of: JsonOf, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text('{"text": "one", "user_id": "bob"}\nbroken\n{"role": "user", "content": "two", "name": "Al"}\n')
    shown = json_of("encode", "--from", str(file), "--user", "alice", code=1)
    assert (shown["read"], shown["facts"], shown["format"], shown["all_encoded"]) == (2, 2, "jsonl", True)
    assert [error["line"] for error in shown["errors"]] == [2]
    first, second = memory.calls
    assert first[1] == (["one"],)
    assert first[2]["user_id"] == "bob"
    assert second[2]["user_id"] == "alice"
    message = second[1][0][0]
    assert (message["role"], message["content"], message["name"]) == ("user", "two", "Al")
    assert message["id"]


def test_encode_refuses_a_file_without_an_owner(
    run: Run, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text('{"text": "one"}\n')
    result = run("encode", "--from", str(file))
    assert result.exit_code == 2
    assert "does not say whose memory it is" in result.stderr


def test_encode_refuses_a_missing_file_before_an_engine_starts(run: Run, tmp_path: Path) -> None:
    result = run("encode", "--from", str(tmp_path / "none.jsonl"), "--user", "alice")
    assert result.exit_code == 2
    assert "none.jsonl is not a file" in result.stderr


def test_encode_tells_what_is_left_when_time_is_up(
    run: Run, memory: FakeMemory, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(timeout: float | None = None) -> None:
        raise FlushTimeoutError("1 fact is waiting.")

    monkeypatch.setattr(memory, "flush", late)
    file = tmp_path / "facts.jsonl"
    file.write_text('{"text": "one", "user_id": "bob"}\n')
    result = run("encode", "--from", str(file), "--timeout", "0")
    assert result.exit_code == 1
    assert "1 fact is waiting. Run the same command again to go on." in result.stderr
