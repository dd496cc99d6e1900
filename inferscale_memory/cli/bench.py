"""``inferscale bench``: ttft, exactness, session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferscale_memory.cli.options import Home, Model
from inferscale_memory.cli.output import emit, stdout_reserved
from inferscale_memory.cli.session import stay_offline
from inferscale_memory.config import load_settings
from inferscale_memory.errors import InvalidInputError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure this machine: speed and exactness.")

STDOUT = Path("-")
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON; - is stdout, and nothing else.")
]
PlotFile = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows: .png, .svg or .pdf.")]


@app.command("ttft", epilog="Example: inferscale bench ttft --k 0,10,50 --repeat 5 --json ttft.json --plot ttft.png")
def ttft(
    k: Annotated[str, typer.Option("--k", metavar="LIST", help="Numbers of facts, with commas.")] = "0,5,10,25,50,100",
    fact_tokens: Annotated[int, typer.Option("--fact-tokens", min=1, help="Length of a fact in tokens.")] = 25,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs of each; medians are reported.")] = 9,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """Time to the first token: injected, prefilled, and as a perfect prefix-cache hit, in one run."""
    ks = _numbers(k)
    name = _prepare(model, home)
    for file in (json, plot):
        _check_writable(file)
    from inferscale_memory.bench import ttft as script

    _run(script.run, json, k=ks, fact_tokens=fact_tokens, repeat=repeat, model=name, plot=plot, home=home)


@app.command("exactness", epilog="Example: inferscale bench exactness --json exactness.json")
def exactness(model: Model = None, json: JsonFile = None, home: Home = None) -> None:
    """How far injecting moves the logprobs from a full prefill, over the whole vocabulary."""
    name = _prepare(model, home)
    _check_writable(json)
    from inferscale_memory.bench import exactness as script

    _run(script.run, json, model=name, home=home)


def _run(run: Any, json: Path | None, **options: Any) -> None:
    """Call a benchmark, which writes its files itself; only ``-`` is printed here."""
    if json != STDOUT:
        run(json=json, **options)
        return
    with stdout_reserved():
        result = run(json=None, **options)
    emit(result)


def _prepare(model: str | None, home: Path | None) -> str:
    settings = load_settings(home)
    name = model or settings.model
    stay_offline(name, settings.embedder)
    return name


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0:
        raise InvalidInputError(f"--k {text!r} is no list of numbers of facts; give one such as 0,10,50.")
    return numbers


def _check_writable(file: Path | None) -> None:
    """Refuse a target before minutes of measuring are spent on it."""
    if file is not None and file != STDOUT and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InvalidInputError(f"{file} cannot be written: its folder does not exist, or it is a folder.")


@app.command("session", epilog="Example: inferscale bench session --k 10,50 --repeat 3 --json session.json")
def session(
    k: Annotated[str, typer.Option("--k", metavar="LIST", help="Numbers of facts, with commas.")] = "10,50",
    facts: Annotated[int, typer.Option("--facts", min=1, help="Facts remembered.")] = 200,
    fact_tokens: Annotated[int, typer.Option("--fact-tokens", min=1, help="Length of a fact in tokens.")] = 25,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Conversations of each kind.")] = 3,
    model: Model = None,
    json: JsonFile = None,
    home: Home = None,
) -> None:
    """Tokens and time per question of a conversation, facts in sticky and in ranked order."""
    ks = _numbers(k)
    name = _prepare(model, home)
    _check_writable(json)
    from inferscale_memory.bench import session as script

    _run(script.run, json, k=ks, facts=facts, fact_tokens=fact_tokens, repeat=repeat, model=name, home=home)
