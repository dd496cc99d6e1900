"""``inferscale encode``: the offline encoder."""

from __future__ import annotations

import itertools
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
    QualityOption,
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
    by_session: Annotated[
        bool, typer.Option("--by-session", help="LoCoMo: keep sessions apart; none is then context of another.")
    ] = False,
    model: Model = None,
    quality: QualityOption = None,
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
    reader = read_source(source, format, by_session=by_session)
    options = pairs(engine_options, "--vllm")
    with stdout_reserved(), open_engine(model, home, options) as engine, open_memory(home, engine, quality) as memory:
        counts, errors = _save(memory, reader, given)
        pending, parked = _drain(memory, timeout)
    errors += [{"line": bad.line, "reason": bad.reason} for bad in reader.errors]
    if json:
        done = {"all_encoded": not pending and not parked, "parked": parked, "errors": errors}
        emit({"source": str(source), "format": reader.format, **counts, **done})
    else:
        stdout().print(f"{counts['read']} read, {counts['facts']} facts, {counts['created']} of them new")
    for bad in errors:
        fail(f"entry {bad['line']} was not kept: {bad['reason']}")
    for fact in parked:
        fail(f"fact {fact['fact_id']} is kept as text but could not be encoded: {fact['reason']}")
    if pending:
        raise FlushTimeoutError(f"{pending} Run the same command again to go on.")
    if errors or parked:
        raise typer.Exit(1)


def _save(
    memory: Memory, reader: Iterable[SourceItem], given: dict[str, Any]
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Add the entries in batches of one scope. Adding is idempotent, which makes the whole command resumable."""
    from inferscale_memory.encoding.entries import entries

    counts = {"read": 0, "context_only": 0, "facts": 0, "created": 0}
    errors: list[dict[str, Any]] = []
    for scope, batch in _batches(reader, given):
        turns, facts = entries(batch)
        result = memory.store.add(facts, scope, turns=turns)
        counts["read"] += len(batch)
        counts["context_only"] += sum(item.kind == "turn" for item in batch)
        counts["facts"] += len(result.facts)
        counts["created"] += len(result.created)
        errors += [{"line": batch[error.index].line, "reason": error.reason} for error in result.errors]
    return counts, errors


def _batches(reader: Iterable[SourceItem], given: dict[str, Any]) -> Iterator[tuple[Scope, list[SourceItem]]]:
    for named, run in itertools.groupby(reader, key=lambda item: item.scope):
        ids = {**given, **named}
        if ids["user_id"] is ids["agent_id"] is ids["session_id"] is None:
            raise InvalidInputError("the file does not say whose memory it is. Give --user, --agent or --session.")
        scope = Scope.of(**ids)
        while batch := list(itertools.islice(run, BATCH)):
            yield scope, batch


def _drain(memory: Memory, timeout: float | None) -> tuple[str, list[dict[str, Any]]]:
    """Wait until everything is encoded. The reason if the time is over before that, and the facts set aside."""
    bar = Progress(
        TextColumn("encoding"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
    with bar:
        task = bar.add_task("encoding", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        try:
            report = memory.flush(timeout=timeout, progress=show)
        except FlushTimeoutError as error:
            return str(error), []
    return "", [{"fact_id": fact.fact_id, "reason": fact.reason} for fact in report.parked]
