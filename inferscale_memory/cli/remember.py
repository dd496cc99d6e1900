"""``inferscale remember``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferscale_memory.cli.options import DEFAULT_TENANT_ID, Agent, Home, Json, Session, Tenant, User, pairs, scope_ids
from inferscale_memory.cli.output import emit, fact_line, fact_row, fail, status, stdout
from inferscale_memory.cli.session import open_memory
from inferscale_memory.errors import InvalidInputError

EXAMPLE = "Example: inferscale remember 'My dog is called Rex.' 'I live in Bern.' --user alice"


def remember(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Facts; - reads one per line from stdin.")],
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="NAME=VALUE", help="Kept with the facts. Repeatable.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: a retry with the same key adds nothing twice.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Save facts as text. They are encoded when an engine runs next (ask, encode)."""
    ids = scope_ids(user, agent, session, tenant)
    extra = pairs(metadata, "--metadata")
    items = _lines() if texts == ["-"] else texts
    if not items:
        raise InvalidInputError("nothing to remember: stdin held no line that is not blank.")
    with open_memory(home) as memory, status("saving"):
        result = memory.add(items, metadata=extra or None, idempotency_key=key, **ids)
    created = set(result.created)
    if json:
        rows = [{**fact_row(fact), "created": fact.id in created} for fact in result.facts]
        errors = [{"index": e.index, "reason": e.reason, "preview": e.preview} for e in result.errors]
        emit({"facts": rows, "errors": errors})
    else:
        for fact in result.facts:
            stdout().print(fact_line(fact) if fact.id in created else fact_line(fact).append("  (known)", "dim"))
    for error in result.errors:
        fail(f"item {error.index + 1} was not kept: {error.reason}")
    if result.errors:
        raise typer.Exit(1)


def _lines() -> list[str]:
    return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
