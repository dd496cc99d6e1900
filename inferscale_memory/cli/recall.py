"""``inferscale recall`` and ``inferscale ask``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from inferscale_memory.cli.options import (
    DEFAULT_TENANT_ID,
    Agent,
    EngineOptions,
    Home,
    Json,
    K,
    Model,
    QualityOption,
    RefreshOption,
    Session,
    Tenant,
    User,
    pairs,
    scope_ids,
)
from inferscale_memory.cli.output import emit, fact_line, fact_row, note, status, stdout, stdout_reserved
from inferscale_memory.cli.session import open_engine, open_memory
from inferscale_memory.errors import FlushTimeoutError

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory
    from inferscale_memory.retrieval import ScoredFact

RECALL_EXAMPLE = "Example: inferscale recall 'What is my dog called?' --user alice -k 5"
ASK_EXAMPLE = "Example: inferscale ask 'What is my dog called?' --user alice --model demo"


def recall(
    question: Annotated[str, typer.Argument(help="What to find facts for.")],
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    k: K = None,
    refresh: RefreshOption = None,
    quality: QualityOption = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Find the facts for a question, best first, and print the handle that stands for them."""
    ids = scope_ids(user, agent, session, tenant)
    with open_memory(home, quality=quality) as memory, status("searching"):
        handle = memory.recall(question, k=k, refresh=refresh, **ids)
    found = handle.facts
    if json:
        emit({"handle": str(handle) if found else "", "facts": _rows(found)})
        return
    for hit in found:
        stdout().print(Text(f"{hit.score:6.3f}  ").append_text(fact_line(hit.fact)))
    if found:
        stdout().print(str(handle), markup=False)
    else:
        note("no facts in this scope")


def ask(
    question: Annotated[str, typer.Argument(help="The question to answer.")],
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    k: K = None,
    refresh: RefreshOption = None,
    quality: QualityOption = None,
    model: Model = None,
    system: Annotated[str, typer.Option("--system", help="The system prompt.")] = "You are a helpful assistant.",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token.")] = 0.0,
    wait: Annotated[
        float, typer.Option("--wait", min=0.0, help="Seconds to wait for facts that are not encoded yet.")
    ] = 120.0,
    engine_options: EngineOptions = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Answer a question from memory: recall, inject, generate. Starts an engine for it."""
    ids = scope_ids(user, agent, session, tenant)
    options = pairs(engine_options, "--vllm")
    with stdout_reserved(), open_engine(model, home, options) as engine, open_memory(home, engine, quality) as memory:
        _encode_pending(memory, wait)
        with status("answering"):
            recalled = memory.recall(question, k=k, refresh=refresh, **ids)
            handle = str(recalled) if recalled.facts else ""
            messages = [
                {"role": "system", "content": f"{system}\n{handle}" if handle else system},
                {"role": "user", "content": question},
            ]
            reply = engine.chat(messages, max_tokens=max_tokens, temperature=temperature, **ids)
    answer = reply["choices"][0]["message"]["content"] or ""
    if json:
        facts = _rows(recalled.facts)
        emit({"answer": answer, "handle": handle, "facts": facts, "kv": reply["kv"], "usage": reply["usage"]})
        return
    stdout().print(answer.strip(), markup=False)
    note(accounting_line(reply["kv"]))


def accounting_line(kv: dict[str, Any]) -> str:
    """Where the tokens of a prompt came from, for people."""
    line = f"{kv['injected']} tokens injected, {kv['local_hit']} from the prefix cache, {kv['prefilled']} prefilled"
    return f"{line} ({kv['fallback_reason']})" if kv.get("fallback_reason") else line


def _encode_pending(memory: Memory, wait: float) -> None:
    try:
        with status("encoding facts"):
            memory.flush(timeout=wait)
    except FlushTimeoutError as error:
        note(f"{error} Facts not encoded yet are prefilled.")


def _rows(found: Sequence[ScoredFact]) -> list[dict[str, Any]]:
    return [{**fact_row(hit.fact), "score": round(float(hit.score), 6)} for hit in found]
