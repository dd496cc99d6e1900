"""``inferscale facts`` and ``inferscale forget``."""

from __future__ import annotations

from typing import Annotated

import typer

from inferscale_memory.cli.options import DEFAULT_TENANT_ID, Agent, Home, Json, Session, Tenant, User, scope_ids
from inferscale_memory.cli.output import emit, fact_line, fact_row, note, stdout
from inferscale_memory.cli.session import open_memory
from inferscale_memory.errors import FactNotFoundError, InvalidInputError

FACTS_EXAMPLE = "Example: inferscale facts --user alice --limit 20"
FORGET_EXAMPLE = "Example: inferscale forget FACT_ID --user alice (or: inferscale forget --all --yes --user alice)"


def facts(
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many facts.")] = 100,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")] = None,
    history: Annotated[str | None, typer.Option("--history", metavar="ID", help="Revisions of one fact.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """List what is remembered, or the history of one fact."""
    ids = scope_ids(user, agent, session, tenant)
    with open_memory(home) as memory:
        if history is not None:
            revisions = memory.history(history, **ids)
            rows = [{"revision": r.revision, "kind": r.kind, "text": r.text, "at": r.at} for r in revisions]
            if json:
                emit({"fact_id": history, "revisions": rows})
            else:
                for row in rows:
                    stdout().print(f"{row['revision']:>3}  {row['at']:%Y-%m-%d %H:%M}  {row['kind']:<6}  ", end="")
                    stdout().print(row["text"], markup=False)
            return
        page = memory.list(limit=limit, cursor=cursor, **ids)
    if json:
        emit({"facts": [fact_row(fact) for fact in page.facts], "next_cursor": page.next_cursor})
        return
    for fact in page.facts:
        stdout().print(fact_line(fact))
    if not page.facts:
        note("no facts in this scope")
    if page.next_cursor is not None:
        note(f"more: --cursor {page.next_cursor}")


def forget(
    fact_ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of facts to delete.")] = None,
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    everything: Annotated[bool, typer.Option("--all", help="Delete every fact of the scope.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --all.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Delete facts: text, vector and attention states. Facts encoded behind them are encoded again."""
    ids = scope_ids(user, agent, session, tenant)
    if bool(fact_ids) == everything:
        raise InvalidInputError("give the ids of facts to forget, or --all, and not both.")
    if everything and not yes:
        typer.confirm("Delete every fact of this scope?", abort=True, err=True)
    missing: list[str] = []
    forgotten = 0
    with open_memory(home) as memory:
        if everything:
            forgotten = memory.delete_all(**ids)
        for fact_id in fact_ids or ():
            try:
                memory.delete(fact_id, **ids)
                forgotten += 1
            except FactNotFoundError:
                missing.append(fact_id)
    if json:
        emit({"forgotten": forgotten, "missing": missing})
    else:
        stdout().print(f"{forgotten} forgotten")
    if missing:
        raise FactNotFoundError(f"no such fact in this scope: {', '.join(missing)}. The others were forgotten.")
