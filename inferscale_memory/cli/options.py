"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.quality import PRESETS, Refresh, parse_refresh
from inferscale_memory.scope import DEFAULT_TENANT, Scope


def _refresh(text: str) -> Refresh:
    try:
        return parse_refresh(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from error


def _quality(text: str) -> str:
    if text not in PRESETS:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(PRESETS)}.")
    return text


User = Annotated[str | None, typer.Option("--user", "-u", help="Whose memory: the user's id.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Whose memory: the agent's id; narrows it beside --user.")]
Session = Annotated[str | None, typer.Option("--session", help="Id of the conversation; narrows the memory.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Id of the tenant that the others belong to.")]
Home = Annotated[
    Path | None, typer.Option("--home", help="Folder of models and memories, in place of INFERSCALE_HOME.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Model of the engine: demo, a folder or a hub id.")]
RefreshOption = Annotated[
    Any,
    typer.Option(
        "--refresh",
        metavar="N|all|auto",
        parser=_refresh,
        help="How many best-ranked facts are prefilled as text; auto goes by tune's profile, else by their number.",
    ),
]
QualityOption = Annotated[
    Any,
    typer.Option(
        "--quality",
        metavar="exact|balanced|fast",
        parser=_quality,
        help="Policy and refresh together, before what INFERSCALE_POLICY and INFERSCALE_REFRESH say.",
    ),
]
K = Annotated[int | None, typer.Option("-k", "--k", min=1, help="How many facts to recall.")]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option("--vllm", metavar="NAME=VALUE", help="An option of vLLM, such as max_model_len=4096. Repeatable."),
]
DEFAULT_TENANT_ID = DEFAULT_TENANT


class ScopeIds(TypedDict):
    """The scope keywords of ``Memory`` and ``LocalEngine``."""

    user_id: str | None
    agent_id: str | None
    session_id: str | None
    tenant_id: str


def scope_ids(user: str | None, agent: str | None, session: str | None, tenant: str) -> ScopeIds:
    """Check the ids before anything heavy starts.

    Raises:
        ScopeError: none is given, or one is blank.
    """
    if user is agent is session is None:
        raise InvalidInputError("whose memory? Give --user, --agent or --session, such as --user alice.")
    ids = ScopeIds(user_id=user, agent_id=agent, session_id=session, tenant_id=tenant)
    Scope.of(**ids)
    return ids


def pairs(given: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Read ``NAME=VALUE`` arguments; a value that is JSON is taken as such, any other as text.

    Raises:
        InvalidInputError: one has no name or no ``=``.
    """
    read: dict[str, Any] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise InvalidInputError(f"{option} {item!r} is not of the form NAME=VALUE.")
        try:
            read[name.strip()] = json.loads(value)
        except ValueError:
            read[name.strip()] = value
    return read
