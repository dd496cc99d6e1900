"""Every failure of a command that needs no engine: one line on stderr, nothing on stdout, an exit code that tells."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ALICE = ("--user", "alice")


def refused(run: Run, *arguments: str, code: int) -> str:
    """The one line, with and without --json."""
    said = []
    for more in ((), ("--json",)):
        result = run(*arguments, *more)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        (line,) = result.stderr.splitlines()
        said.append(line)
    assert said[0] == said[1]
    assert said[0].startswith("inferscale: ")
    return said[0]


@pytest.mark.parametrize(
    "command", [("remember", "fact"), ("recall", "q"), ("ask", "q"), ("facts",), ("forget", "--all", "--yes")]
)
@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        ((), "whose memory? Give --user, --agent or --session"),
        (("--tenant", "t"), "whose memory?"),
        (("--user", " "), "user_id is blank"),
        (("--user", "alice", "--session", ""), "session_id is blank"),
        (("--user", "alice", "--tenant", ""), "tenant_id is blank"),
        (("--user", "a\udcff"), "lone surrogate"),
    ],
)
def test_a_missing_or_blank_owner(run: Run, command: tuple[str, ...], scope: tuple[str, ...], reason: str) -> None:
    assert reason in refused(run, *command, *scope, code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("recall", "q", "-k", "20000"), 2, "k is 20000; wanted the number of facts, 1 to 10,000"),
        (("facts", "--limit", "5000"), 2, "limit must be 1 to 1000, got 5000"),
        (("facts", "--cursor", "x"), 2, "cursor must be the next_cursor of a page"),
        (("facts", "--history", "nope"), 1, "no fact 'nope'"),
        (("remember", "x", "--key", " "), 2, "idempotency_key must be a non-blank string"),
        (("ask", "q", "--model", "/no/such/folder"), 1, "there is no folder '/no/such/folder'"),
        (("ask", "q", "--model", "a/b/c"), 1, "neither a folder nor a hub id"),
        (("ask", "q", "--vllm", "max_model_len"), 2, "not of the form NAME=VALUE"),
    ],
)
def test_an_argument_that_cannot_be_used(run: Run, arguments: tuple[str, ...], code: int, reason: str) -> None:
    assert reason in refused(run, *arguments, *ALICE, code=code)


def test_a_model_folder_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    reason = refused(run, "ask", "q", "--model", str(tmp_path / "empty"), *ALICE, code=1)
    assert "is no model folder: it has no config.json (it holds nothing)" in reason


def test_an_embedder_that_is_none(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_EMBEDDER", str(tmp_path))
    assert "is no model folder" in refused(run, "recall", "q", *ALICE, code=1)


def test_a_setting_that_cannot_be_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_K", "0")
    assert "INFERSCALE_K='0' cannot be used" in refused(run, "facts", *ALICE, code=2)


def test_a_secret_that_others_can_read(run: Run, home: Path) -> None:
    assert run("remember", "fact", *ALICE).exit_code == 0
    (home / "memory" / "secret").chmod(0o644)
    assert "chmod 600" in refused(run, "facts", *ALICE, code=2)


def test_a_home_that_is_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refused(run, "facts", "--home", str(tmp_path / "file"), *ALICE, code=1)


def test_a_database_that_is_none(run: Run, home: Path) -> None:
    (home / "memory").mkdir(mode=0o700)
    (home / "memory" / "facts.db").write_bytes(b"certainly not a database " * 100)
    assert "not a database" in refused(run, "facts", *ALICE, code=1)


def test_a_full_disk(run: Run, home: Path) -> None:
    assert run("remember", "kept", *ALICE).exit_code == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        reason = refused(run, "remember", "lost", *ALICE, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "facts.db" in reason
    assert "kept" in run("facts", *ALICE).stdout


def test_a_bad_text_beside_a_good_one(run: Run) -> None:
    result = run("remember", "good", "b\udcff", "", *ALICE)
    assert result.exit_code == 1
    assert result.stdout.split(maxsplit=1)[1] == "good\n"
    first, second = result.stderr.splitlines()
    assert first.startswith("inferscale: item 2 was not kept: fact text holds a lone surrogate (U+DCFF)")
    assert second.startswith("inferscale: item 3 was not kept: fact text is blank")


def test_a_fact_of_another_user(run: Run) -> None:
    assert run("remember", "Alice's", *ALICE).exit_code == 0
    fact_id = run("facts", *ALICE).stdout.split()[0]
    result = run("forget", fact_id, "--user", "bob")
    assert (result.exit_code, result.stdout) == (1, "0 forgotten\n")
    assert result.stderr.splitlines() == [
        f"inferscale: no such fact in this scope: {fact_id}. The others were forgotten."
    ]
    assert "Alice's" in run("facts", *ALICE).stdout
