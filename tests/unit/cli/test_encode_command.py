"""encode: a file in, idempotent batches, what is left over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferscale_memory.errors import FlushTimeoutError
from inferscale_memory.scope import Scope

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]
FakeMemory = Any
FakeEngine = Any


def stored(memory: FakeMemory, user: str) -> list[Any]:
    return list(memory.store.list(Scope.of(user_id=user)).facts)


def test_encode_saves_each_entry_to_its_owner_and_names_the_bad(
    json_of: JsonOf, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text(
        '{"text": "one", "user_id": "bob", "metadata": {"n": 1}}\nbroken\n'
        '{"role": "user", "content": "two", "name": "Al", "time": "2024-01-02T03:04:05"}\n'
    )
    shown = json_of("encode", "--from", str(file), "--user", "alice", code=1)
    assert (shown["read"], shown["facts"], shown["created"], shown["format"]) == (2, 2, 2, "jsonl")
    assert shown["all_encoded"] is True
    assert [error["line"] for error in shown["errors"]] == [2]
    (one,), (two,) = stored(memory, "bob"), stored(memory, "alice")
    assert (one.text, one.metadata) == ("one", {"n": 1})
    assert (two.text, two.speaker, two.created_at.year) == ("Al: two", "Al", 2024)
    assert len(two.turn_ids) == 1


def test_encoding_a_file_again_adds_nothing(
    json_of: JsonOf, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text("".join(f'{{"role": "user", "content": "fact {n}"}}\n' for n in range(150)))
    assert json_of("encode", "--from", str(file), "--user", "alice")["created"] == 150
    again = json_of("encode", "--from", str(file), "--user", "alice")
    assert (again["facts"], again["created"]) == (150, 0)
    assert memory.store.count(Scope.of(user_id="alice")) == 150


def test_encode_keeps_turns_as_context_of_the_facts_that_name_them(
    json_of: JsonOf, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "Hi!"},
        {"speaker": "Ann", "dia_id": "D1:2", "text": "A cat!"},
    ]
    document = {
        "session_1": turns,
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1_observation": {"Ann": [["Ann has a cat.", "D1:2"]]},
    }
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(document))
    shown = json_of("encode", "--from", str(file), "--user", "alice")
    assert (shown["read"], shown["context_only"], shown["facts"]) == (3, 2, 1)
    (fact,) = stored(memory, "alice")
    assert (fact.text, fact.speaker) == ("Ann has a cat.", "Ann")
    assert [turn.text for turn in memory.store.preceding_turns(fact, 5)] == ["Hi!"]


@pytest.mark.parametrize(("options", "context"), [((), ["Ann has a cat."]), (("--by-session",), [])])
def test_what_was_said_in_one_session_of_a_conversation_is_context_of_the_next_unless_asked_not_to(
    json_of: JsonOf,
    memory: FakeMemory,
    engine: FakeEngine,
    tmp_path: Path,
    options: tuple[str, ...],
    context: list[str],
) -> None:
    document = {
        "session_1": [{"speaker": "Ann", "dia_id": "D1:1", "text": "A cat!"}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1_observation": {"Ann": [["Ann has a cat.", "D1:1"]]},
        "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "It is called Tom."}],
        "session_2_date_time": "1:56 pm on 9 May, 2023",
        "session_2_observation": {"Ann": [["Ann's cat is called Tom.", "D2:1"]]},
    }
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(document))
    json_of("encode", "--from", str(file), "--user", "alice", *options)
    tom = stored(memory, "alice")[-1]
    assert (tom.text, tom.metadata) == ("Ann's cat is called Tom.", {"session": 2})
    assert [fact.text for fact in memory.store.preceding_facts(tom, 5)] == context
    assert len(memory.store.preceding_turns(tom, 5)) == len(context)


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
    def late(**options: Any) -> None:
        raise FlushTimeoutError("1 fact is waiting.")

    monkeypatch.setattr(memory, "flush", late)
    file = tmp_path / "facts.jsonl"
    file.write_text('{"text": "one", "user_id": "bob"}\n')
    result = run("encode", "--from", str(file), "--timeout", "0")
    assert result.exit_code == 1
    assert "1 fact is waiting. Run the same command again to go on." in result.stderr


def test_encode_names_facts_that_could_not_be_encoded(
    run: Run, memory: FakeMemory, engine: FakeEngine, tmp_path: Path
) -> None:
    memory.parked = (SimpleNamespace(fact_id="f1", reason="longer than the model takes"),)
    file = tmp_path / "facts.jsonl"
    file.write_text('{"text": "one", "user_id": "bob"}\n')
    result = run("encode", "--from", str(file))
    assert result.exit_code == 1
    assert "fact f1 is kept as text but could not be encoded: longer than the model takes" in result.stderr
