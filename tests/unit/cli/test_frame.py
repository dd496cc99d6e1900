"""Every command: an example in its help, one-line reasons, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferscale_memory.cli import app
from inferscale_memory.errors import FactNotFoundError, InvalidInputError, StoreError

Run = Callable[..., Any]
FakeMemory = Any


COMMANDS = [
    ["demo"],
    ["remember"],
    ["recall"],
    ["ask"],
    ["facts"],
    ["forget"],
    ["encode"],
    ["tune"],
    ["doctor"],
    ["models", "list"],
    ["models", "fetch"],
    ["models", "path"],
    ["bench", "ttft"],
    ["bench", "exactness"],
    ["bench", "throughput"],
    ["bench", "mem0-setup"],
    ["bench", "encode"],
    ["bench", "memory"],
    ["bench", "scale"],
    ["bench", "session"],
    ["bench", "quality"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_an_example_and_json(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: inferscale {' '.join(command)}" in " ".join(result.output.split())
    assert "--json" in result.output


def test_no_command_is_missing_from_the_list() -> None:
    groups = {group.name: [c.name for c in group.typer_instance.registered_commands] for group in app.registered_groups}
    named = [[c.name] for c in app.registered_commands] + [[g, c] for g, names in groups.items() for c in names]
    assert sorted(named) == sorted(COMMANDS)


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").stdout.strip()[0].isdigit()


@pytest.mark.parametrize("arguments", [["facts"], ["recall", "q"], ["ask", "q"], ["remember", "x"], ["forget", "f"]])
def test_a_missing_scope_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("inferscale: whose memory? Give --user")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_blank_user_is_a_usage_error(run: Run) -> None:
    result = run("facts", "--user", " ")
    assert result.exit_code == 2
    assert "user_id is blank" in result.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["recall", "q", "-u", "a", "-k", "0"], ["recall"], ["--nope"]])
def test_a_wrong_command_line_exits_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StoreError("the disk\nis full."), 1, "inferscale: the disk is full."),
        (InvalidInputError("k is 0."), 2, "inferscale: k is 0."),
        (FactNotFoundError("no fact 'x'."), 1, "inferscale: no fact 'x'."),
        (PermissionError(13, "Permission denied", "/x"), 1, "inferscale: [Errno 13] Permission denied: '/x'"),
        (
            RuntimeError("a bug"),
            1,
            "inferscale: unexpected RuntimeError: a bug (for the whole trace: inferscale --debug",
        ),
        (KeyboardInterrupt(), 130, "inferscale: interrupted"),
    ],
)
def test_a_failure_is_one_line_on_stderr_and_an_exit_code(
    run: Run, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def failing(**options: Any) -> Any:
        raise error

    monkeypatch.setattr(memory, "list", failing)
    result = run("facts", "--user", "alice", "--json")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == 1


def test_debug_shows_the_whole_trace(run: Run, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(**options: Any) -> Any:
        raise StoreError("broken")

    monkeypatch.setattr(memory, "list", failing)
    assert isinstance(run("--debug", "facts", "--user", "alice").exception, StoreError)


def test_a_wrong_setting_is_a_usage_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSCALE_K", "many")
    result = run("recall", "q", "--user", "alice")
    assert result.exit_code == 2
    assert "INFERSCALE_K='many' cannot be used" in result.stderr
