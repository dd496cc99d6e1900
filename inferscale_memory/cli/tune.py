"""``inferscale tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_memory.cli.bench_options import JsonFile, Keep, Ks, PlotFile, call, check_writable, numbers, prepare
from inferscale_memory.cli.options import (
    DEFAULT_TENANT_ID,
    Agent,
    EngineOptions,
    Home,
    Model,
    Session,
    Tenant,
    User,
    pairs,
    scope_ids,
)
from inferscale_memory.errors import InvalidInputError

EXAMPLE = "Example: inferscale tune --user alice --k 10,50 --bound-kl 0.05 --json tune.json --plot tune.png --write"


def tune(
    user: User = None,
    agent: Agent = None,
    session: Session = None,
    tenant: Tenant = DEFAULT_TENANT_ID,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="In place of a memory: LoCoMo, LongMemEval or JSONL. Repeatable."),
    ] = None,
    ask: Annotated[
        Path | None,
        typer.Option(
            "--ask",
            metavar="FILE",
            help="Questions about the memory, one a line; else they are found in it, and need no answers either way.",
        ),
    ] = None,
    k: Ks = "10,50",
    policies: Annotated[
        str, typer.Option("--policies", metavar="LIST", help="Encoding policies; default is the one of the settings.")
    ] = "default",
    refresh: Annotated[
        str,
        typer.Option("--refresh", metavar="LIST", help="Numbers of refreshed facts; 0 and all are always measured."),
    ] = "0,1,2,3,5",
    bound_kl: Annotated[
        float | None, typer.Option("--bound-kl", min=0.0, help="Largest mean KL to full prefill, nats. Default 0.05.")
    ] = None,
    bound_top1: Annotated[
        float | None, typer.Option("--bound-top1", min=0.0, max=1.0, help="Or: smallest top-1 agreement with it.")
    ] = None,
    questions: Annotated[int, typer.Option("--questions", min=1, help="How many questions, at most.")] = 20,
    facts: Annotated[int, typer.Option("--facts", min=1, help="How many of the newest facts, at most.")] = 300,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often each prompt is timed.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample of questions.")] = 0,
    write: Annotated[
        bool, typer.Option("--write", help="Save the profile, which refresh=auto goes by, in the memory's folder.")
    ] = False,
    model: Model = None,
    engine_options: EngineOptions = None,
    keep: Keep = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Measure policies and refresh on your own model and memory; choose the cheapest that stays near full prefill.

    The memory is only read: what is measured is encoded in a folder of its own. No text of it is in what is written.
    """
    if bound_kl is not None and bound_top1 is not None:
        raise InvalidInputError("--bound-kl and --bound-top1 exclude each other; give one of them.")
    if ask is not None and data:
        raise InvalidInputError("--ask is about a memory; the files of --data hold their own questions.")
    counts = numbers(k), numbers(refresh, "--refresh")
    ids = None if data else scope_ids(user, agent, session, tenant)
    options = pairs(engine_options, "--vllm")
    asked = _lines(ask)
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench.tuning import command
    from inferscale_memory.quality.profile import Bound
    from inferscale_memory.scope import Scope

    bound = command.DEFAULT_BOUND
    if bound_kl is not None:
        bound = Bound(metric="kl", value=bound_kl)
    elif bound_top1 is not None:
        bound = Bound(metric="top1", value=bound_top1)
    material = command.Material(
        None if ids is None else Scope.of(**ids), tuple(data or ()), asked, facts, questions, seed
    )
    grid = command.Grid(counts[0], tuple(policies.split(",")), counts[1], repeat)

    def measured(json: Path | None, **given: object) -> object:
        output = command.Output(json, plot, write)
        return command.run(material, grid, bound, output, command.Tools(options, keep), model=name, home=home)

    call(measured, json)


def _lines(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        found = tuple(line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read as UTF-8 text: {error}.") from error
    if not found:
        raise InvalidInputError(f"{file} holds no question; wanted one a line.")
    return found
