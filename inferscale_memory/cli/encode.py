"""``inferscale encode``: the offline encoder."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inferscale_memory.cli.options import (
    DEFAULT_TENANT_ID,
    Agent,
    EngineOptions,
    Home,
    Json,
    Model,
    Session,
    Tenant,
    User,
    pairs,
)
from inferscale_memory.cli.output import emit, fail, stderr, stdout, stdout_reserved
from inferscale_memory.cli.session import open_engine, open_memory
from inferscale_memory.errors import FlushTimeoutError, InvalidInputError
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.encoding.sources import SourceItem
    from inferscale_memory.memory import Memory

EXAMPLE = "Example: inferscale encode --from history.jsonl --user alice --model demo"
BATCH = 64
POLL_S = 0.5


def encode(
    source: Annotated[
        Path, typer.Option("--from", metavar="FILE", help="JSONL, LoCoMo, LangChain messages or LlamaIndex chat store.")
    ],
    format: Annotated[
        str | None, typer.Option("--format", help="jsonl, locomo, langchain or llama-index; found out if left out.")
    ] = None,
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    model: Model = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.0, help="Give up after so many seconds; what is done is kept.")
    ] = None,
    engine_options: EngineOptions = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Remember a whole file and encode it. Interrupted, the same command goes on where it stopped.

    Ids that an entry of the file carries go before those given here.
    """
    from inferscale_memory.encoding.sources import read_source

    given = {"user_id": user, "agent_id": agent, "session_id": session, "tenant_id": tenant}
    reader = read_source(source, format)
    options = pairs(engine_options, "--engine")
    with stdout_reserved(), open_engine(model, home, options) as engine, open_memory(home, engine) as memory:
        counts, errors = _save(memory, reader, given)
        pending = _drain(memory, counts["facts"], timeout)
    errors += [{"line": bad.line, "reason": bad.reason} for bad in reader.errors]
    if json:
        emit({"source": str(source), "format": reader.format, **counts, "all_encoded": not pending, "errors": errors})
    else:
        stdout().print(f"{counts['read']} read, {counts['facts']} facts, {counts['created']} of them new")
    for bad in errors:
        fail(f"entry {bad['line']} was not kept: {bad['reason']}")
    if pending:
        raise FlushTimeoutError(f"{pending} Run the same command again to go on.")
    if errors:
        raise typer.Exit(1)


def _save(
    memory: Memory, reader: Iterable[SourceItem], given: dict[str, Any]
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Add the entries in batches of one scope. Adding is idempotent, which makes the whole command resumable."""
    counts = {"read": 0, "context_only": 0, "facts": 0, "created": 0}
    errors: list[dict[str, Any]] = []
    for ids, batch in _batches(reader, given):
        counts["read"] += len(batch)
        kept = [item for item in batch if item.kind != "turn"]
        counts["context_only"] += len(batch) - len(kept)
        if not kept:
            continue
        result = memory.add([_entry(item) for item in kept], **ids)
        counts["facts"] += len(result.facts)
        counts["created"] += len(result.created)
        errors += [{"line": kept[error.index].line, "reason": error.reason} for error in result.errors]
    return counts, errors


def _batches(reader: Iterable[SourceItem], given: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[SourceItem]]]:
    for scope, run in itertools.groupby(reader, key=lambda item: item.scope):
        ids = {**given, **scope}
        if ids["user_id"] is ids["agent_id"] is ids["session_id"] is None:
            raise InvalidInputError("the file does not say whose memory it is. Give --user, --agent or --session.")
        Scope.of(**ids)
        while batch := list(itertools.islice(run, BATCH)):
            yield ids, batch


def _entry(item: SourceItem) -> str | dict[str, Any]:
    if item.kind == "fact":
        return item.text
    message: dict[str, Any] = {"role": item.role or "user", "content": item.text, "id": item.id}
    return {**message, "name": item.speaker} if item.speaker else message


def _drain(memory: Memory, total: int, timeout: float | None) -> str:
    """Wait until everything is encoded; the reason if the time is over before that."""
    bar = Progress(
        TextColumn("encoding"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
    started = time.monotonic()
    with bar:
        task = bar.add_task("encoding", total=total)
        while True:
            try:
                memory.flush(timeout=POLL_S)
                return ""
            except FlushTimeoutError as error:
                left = getattr(error, "pending", None)
                bar.update(task, completed=max(0, total - left) if left is not None else None)
                if timeout is not None and time.monotonic() - started >= timeout:
                    return str(error)
