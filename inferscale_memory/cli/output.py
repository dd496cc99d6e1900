"""What the commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact


def stdout() -> Console:
    """Console of results. Made on each call, since the streams may have been replaced."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """Console of progress and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def status(text: str) -> Status:
    """A spinner on stderr for as long as its context lasts; nothing where stderr is no terminal."""
    return stderr().status(text)


def note(text: str) -> None:
    """A remark on stderr."""
    stderr().print(Text(text, style="dim"))


def fail(reason: str) -> None:
    """One line on stderr that says why the command failed."""
    typer.echo(f"inferscale: {reason}", err=True)


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout. Non-ASCII text stays readable; a lone surrogate is escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain)
    typer.echo(text)


def fact_row(fact: Fact) -> dict[str, Any]:
    """A fact for JSON."""
    return {
        "id": fact.id,
        "text": fact.text,
        "scope": fact.scope.as_dict(),
        "revision": fact.revision,
        "speaker": fact.speaker,
        "turn_ids": list(fact.turn_ids),
        "metadata": fact.metadata,
        "created_at": fact.created_at,
        "updated_at": fact.updated_at,
    }


def fact_line(fact: Fact) -> Text:
    """A fact for people: its id and text, one line."""
    return Text.assemble((fact.id, "cyan"), "  ", " ".join(fact.text.split()))


@contextmanager
def stdout_reserved() -> Iterator[None]:
    """Send everything written to stdout to stderr while an engine runs, its child processes included.

    A library or process that prints would otherwise stand between the results. Results are printed afterwards.
    """
    saved = None
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
