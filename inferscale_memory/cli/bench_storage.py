"""``inferscale bench encode`` and ``memory``: what a remembered fact costs in time and in bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from inferscale_memory.cli.bench_options import FactTokens, JsonFile, PlotFile, call, check_writable, prepare
from inferscale_memory.cli.options import Home, Model


def register(app: typer.Typer) -> None:
    """Add the commands to ``inferscale bench``."""
    app.command("encode", epilog="Example: inferscale bench encode --policies preamble,preceding:5:fact --repeat 5")(
        encode
    )
    app.command("memory", epilog="Example: inferscale bench memory --computed-only")(memory)


def encode(
    policies: Annotated[
        str, typer.Option("--policies", metavar="LIST", help="What facts are encoded behind, with commas.")
    ] = "none,preamble,preceding:5:fact,preceding:20:turn,nearest:8,ladder:5:8:20",
    facts: Annotated[int, typer.Option("--facts", min=1, help="Facts per round, also those of the question.")] = 50,
    fact_tokens: FactTokens = 25,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Rounds; medians are reported.")] = 3,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Encoding speed by policy, and after how many recalls a fact's encoding is paid back.

    Paid back: encoding it and injecting it so often takes as long as prefilling it so often, by what a fact adds to the
    time to the first token in the same run.
    """
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import encode as script

    given = [part.strip() for part in policies.split(",")]
    call(
        script.run, json, policies=given, facts=facts, fact_tokens=fact_tokens, repeat=repeat, model=name, plot=plot,
        home=home,
    )  # fmt: skip


def memory(
    facts: Annotated[int, typer.Option("--facts", min=1, max=1000, help="Facts that are encoded and weighed.")] = 50,
    fact_tokens: FactTokens = 25,
    computed_only: Annotated[
        bool, typer.Option("--computed-only", help="Only the table computed from configs; starts no engine.")
    ] = False,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Bytes per fact on every tier, measured; and how many facts fit, computed for larger models.

    A token's attention states take 2 x layers x KV heads x head size x bytes per element.
    """
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import footprint as script

    call(
        script.run, json, facts=facts, fact_tokens=fact_tokens, measured=not computed_only, model=name, plot=plot,
        home=home,
    )  # fmt: skip
