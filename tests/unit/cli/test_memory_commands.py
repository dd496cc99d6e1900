"""remember, recall, ask, facts and forget: what they pass on and what they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferscale_memory.errors import FlushTimeoutError

Run = Callable[..., Any]
JsonOf = Callable[..., dict[str, Any]]
FakeMemory = Any
FakeEngine = Any
KV = {"injected": 20, "local_hit": 0, "prefilled": 12, "fallback_reason": None}


def test_remember_tells_new_facts_from_known_ones(json_of: JsonOf, memory: FakeMemory) -> None:
    shown = json_of("remember", "one", "two", "--user", "alice", "--metadata", "n=1", "--metadata", "s=x", "--key", "k")
    assert [(fact["id"], fact["text"], fact["created"]) for fact in shown["facts"]] == [
        ("f1", "one", True),
        ("f2", "two", False),
    ]
    assert shown["errors"] == []
    (_, (items,), options), *_ = memory.calls
    assert items == ["one", "two"]
    assert options["user_id"] == "alice"
    assert options["tenant_id"] == "default"
    assert options["metadata"] == {"n": 1, "s": "x"}
    assert options["idempotency_key"] == "k"


def test_remember_reads_lines_from_stdin(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    json_of("remember", "-", "--user", "alice", input="one\n\n  \nzwei 犬\n")
    assert memory.calls[0][1][0] == ["one", "zwei 犬"]
    assert run("remember", "-", "--user", "alice", input="\n").exit_code == 2


def test_remember_keeps_the_good_and_names_the_bad(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    memory.errors = (SimpleNamespace(index=1, reason="the text is blank", preview="' '"),)
    shown = json_of("remember", "one", " ", "--user", "alice", code=1)
    assert shown["errors"] == [{"index": 1, "reason": "the text is blank", "preview": "' '"}]
    assert "item 2 was not kept: the text is blank" in run("remember", "one", " ", "--user", "alice").stderr


def test_metadata_without_a_name_is_refused(run: Run, memory: FakeMemory) -> None:
    result = run("remember", "x", "--user", "alice", "--metadata", "=1")
    assert result.exit_code == 2
    assert "--metadata '=1' is not of the form NAME=VALUE" in result.stderr
    assert memory.calls == []


def test_recall_prints_ranked_facts_and_the_handle(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    shown = json_of("recall", "dog?", "--user", "alice", "--session", "s", "-k", "3", "--refresh", "1")
    assert shown["handle"] == "⟦kv:abc⟧"
    assert shown["facts"][0]["text"] == "Rex ist ein 犬 🐕"
    assert shown["facts"][0]["score"] == 0.75
    options = memory.calls[0][2]
    assert (options["k"], options["refresh"], options["session_id"]) == (3, 1, "s")
    plain = run("recall", "dog?", "--user", "alice")
    assert plain.stdout.splitlines() == [" 0.750  f1  Rex ist ein 犬 🐕", "⟦kv:abc⟧"]


def test_recall_leaves_what_is_not_given_to_the_settings(run: Run, memory: FakeMemory) -> None:
    run("recall", "dog?", "--user", "alice")
    assert memory.calls[0][2]["k"] is None
    assert memory.calls[0][2]["refresh"] is None


def test_recall_without_facts_mints_no_handle(json_of: JsonOf, memory: FakeMemory) -> None:
    memory.found = []
    assert json_of("recall", "dog?", "--user", "alice") == {"handle": "", "facts": []}


def test_ask_answers_with_the_handle_in_the_system_message(
    json_of: JsonOf, memory: FakeMemory, engine: FakeEngine
) -> None:
    shown = json_of("ask", "dog?", "--user", "alice", "--max-tokens", "5")
    assert shown["answer"] == "Rex."
    assert shown["kv"] == KV
    assert shown["usage"] == {"prompt_tokens": 32}
    assert engine.messages[0]["content"].endswith("⟦kv:abc⟧")
    assert engine.messages[1] == {"role": "user", "content": "dog?"}
    assert engine.options["max_tokens"] == 5
    assert engine.options["user_id"] == "alice"
    assert memory.flushes == 1


def test_ask_shows_where_the_tokens_came_from(run: Run, memory: FakeMemory, engine: FakeEngine) -> None:
    result = run("ask", "dog?", "--user", "alice")
    assert result.stdout == "Rex.\n"
    assert "20 tokens injected, 0 from the prefix cache, 12 prefilled" in result.stderr


def test_facts_lists_a_page(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    shown = json_of("facts", "--user", "alice", "--limit", "1")
    assert [fact["id"] for fact in shown["facts"]] == ["f1"]
    assert shown["next_cursor"] == "next"
    assert shown["facts"][0]["created_at"] == "2026-01-02T03:04:00+00:00"
    plain = run("facts", "--user", "alice")
    assert plain.stdout == "f1  [bold]one[/]\n"
    assert "--cursor next" in plain.stderr


def test_facts_shows_the_history_of_one(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    shown = json_of("facts", "--user", "alice", "--history", "f1")
    assert shown["fact_id"] == "f1"
    assert shown["revisions"] == [{"revision": 1, "kind": "add", "text": "one", "at": "2026-01-02T03:04:00+00:00"}]
    assert run("facts", "--user", "alice", "--history", "f1").stdout == "  1  2026-01-02 03:04  add     one\n"


def test_forget_deletes_what_exists_and_names_what_does_not(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    assert json_of("forget", "f1", "--user", "alice") == {"forgotten": 1, "missing": []}
    assert json_of("forget", "gone", "f2", "--user", "alice", code=1) == {"forgotten": 1, "missing": ["gone"]}
    assert "no such fact in this scope: gone" in run("forget", "gone", "--user", "alice").stderr


def test_forget_everything_asks_first(run: Run, json_of: JsonOf, memory: FakeMemory) -> None:
    refused = run("forget", "--all", "--user", "alice", input="n\n")
    assert refused.exit_code == 1
    assert run("forget", "--all", "--user", "alice", input="y\n").stdout.endswith("2 forgotten\n")
    assert json_of("forget", "--all", "--yes", "--user", "alice")["forgotten"] == 2


@pytest.mark.parametrize("arguments", [[], ["f1", "--all"]])
def test_forget_takes_ids_or_all(run: Run, memory: FakeMemory, arguments: list[str]) -> None:
    result = run("forget", *arguments, "--user", "alice")
    assert result.exit_code == 2
    assert "the ids of facts to forget, or --all, and not both" in result.stderr


def test_ask_goes_on_when_facts_are_not_encoded_in_time(
    run: Run, memory: FakeMemory, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**options: Any) -> None:
        raise FlushTimeoutError("3 facts are waiting.")

    monkeypatch.setattr(memory, "flush", late)
    result = run("ask", "dog?", "--user", "alice")
    assert result.exit_code == 0
    assert "3 facts are waiting. Facts not encoded yet are prefilled." in result.stderr


def test_texts_are_kept_listed_and_forgotten_without_an_engine(run: Run, json_of: JsonOf, home: Path) -> None:
    made = json_of("remember", "Rex ist ein 犬.", " ", "--user", "alice", code=1)
    assert [error["index"] for error in made["errors"]] == [1]
    assert json_of("remember", "Rex ist ein 犬.", "--user", "alice")["facts"][0]["created"] is False
    (fact,) = json_of("facts", "--user", "alice")["facts"]
    assert fact["text"] == "Rex ist ein 犬."
    assert json_of("facts", "--user", "bob")["facts"] == []
    assert run("forget", fact["id"], "--user", "bob").exit_code == 1
    assert json_of("forget", fact["id"], "--user", "alice") == {"forgotten": 1, "missing": []}
    assert json_of("facts", "--user", "alice")["facts"] == []
    assert json_of("doctor", "--no-engine")["ok"] is True
    assert (home / "memory").stat().st_mode & 0o077 == 0
