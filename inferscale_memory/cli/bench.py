"""``inferscale bench``: ttft, exactness, session; the others are in ``bench_load``, ``_storage`` and ``_quality``."""

from __future__ import annotations

from typing import Annotated

import typer

from inferscale_memory.cli import bench_load, bench_quality, bench_storage
from inferscale_memory.cli.bench_options import (
    FactTokens,
    JsonFile,
    Ks,
    PlotFile,
    call,
    check_writable,
    numbers,
    prepare,
)
from inferscale_memory.cli.options import Home, Model

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure: speed, size, exactness, and quality.")


@app.command("ttft", epilog="Example: inferscale bench ttft --k 0,10,50 --repeat 5 --json ttft.json --plot ttft.png")
def ttft(
    k: Ks = "0,5,10,25,50,100",
    fact_tokens: FactTokens = 25,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs of each; medians are reported.")] = 9,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Time to the first token: injected, prefilled, and as a perfect prefix-cache hit, in one run."""
    ks = numbers(k)
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import ttft as script

    call(script.run, json, k=ks, fact_tokens=fact_tokens, repeat=repeat, model=name, plot=plot, home=home)


@app.command("exactness", epilog="Example: inferscale bench exactness --json exactness.json")
def exactness(model: Model = None, json: JsonFile = None, home: Home = None) -> None:
    """How far injecting moves the logprobs from a full prefill, over the whole vocabulary."""
    name = prepare(model, home)
    check_writable(json)
    from inferscale_memory.bench import exactness as script

    call(script.run, json, model=name, home=home)


@app.command("session", epilog="Example: inferscale bench session --k 10,50 --repeat 3 --json session.json")
def session(
    k: Ks = "10,50",
    facts: Annotated[int, typer.Option("--facts", min=1, help="Facts remembered.")] = 200,
    fact_tokens: Annotated[int, typer.Option("--fact-tokens", min=1, help="Length of a fact in tokens.")] = 25,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Conversations of each kind.")] = 3,
    model: Model = None,
    json: JsonFile = None,
    home: Home = None,
) -> None:
    """Tokens and time per question of a conversation, facts in sticky and in ranked order."""
    ks = numbers(k)
    name = prepare(model, home)
    check_writable(json)
    from inferscale_memory.bench import session as script

    call(script.run, json, k=ks, facts=facts, fact_tokens=fact_tokens, repeat=repeat, model=name, home=home)


bench_load.register(app)
bench_storage.register(app)
bench_quality.register(app)
