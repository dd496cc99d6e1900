"""``inferscale bench quality``: how near injected facts come to the same facts as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_memory.cli.bench_options import JsonFile, Ks, PlotFile, call, check_writable, numbers, prepare
from inferscale_memory.cli.options import Home, Model
from inferscale_memory.errors import InvalidInputError

EXAMPLE = (
    "Example: inferscale bench quality --data conv-26.json --data conv-30.json --k 10,50 "
    "--policy none,preamble,default --refresh 0,3,k --json quality.json --plot quality.png. "
    'A jsonl file has one object a line: {"fact": TEXT, "id": NAME, "user": WHOSE} or {"question": TEXT, '
    '"answer": TEXT, "user": WHOSE, "category": NAME, "evidence": [NAMES OF FACTS]}; id, user, category and evidence '
    "may be left out."
)


def register(app: typer.Typer) -> None:
    """Add the command to ``inferscale bench``."""
    app.command("quality", epilog=EXAMPLE)(quality)


def quality(
    data: Annotated[
        list[Path], typer.Option("--data", metavar="FILE", help="Conversations and questions; repeatable.")
    ],
    format: Annotated[
        str | None, typer.Option("--format", help="locomo, longmemeval or jsonl; found out if left out.")
    ] = None,
    facts: Annotated[
        str, typer.Option("--facts", help="LoCoMo: remember the observations, or all turns.")
    ] = "observations",
    k: Ks = "10,50",
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="LIST", help="What facts are encoded behind; default is the library's pair."),
    ] = "none,preamble,preceding:5:fact,preceding:20:turn,default",
    refresh: Annotated[
        str,
        typer.Option(
            "--refresh", metavar="LIST", help="How many of the best are prefilled; k is all, auto by their number."
        ),
    ] = "0",
    questions: Annotated[
        int, typer.Option("--questions", min=1, help="A sample, stratified by conversation and category.")
    ] = 100,
    categories: Annotated[
        str | None, typer.Option("--categories", metavar="LIST", help="Only these; LoCoMo: 1,2,3,4 by default.")
    ] = None,
    order: Annotated[str, typer.Option("--order", help="ranked: the best last; sticky: kept in place.")] = "ranked",
    seed: Annotated[int, typer.Option("--seed", help="Of the sample.")] = 0,
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="URL", help="An OpenAI-compatible API that judges the answers.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option("--judge-model", metavar="NAME", help="The judge's name there; OPENAI_API_KEY opens.")
    ] = None,
    ceilings: Annotated[
        bool, typer.Option("--ceilings/--no-ceilings", help="Also the full context, the evidence alone, no memory.")
    ] = True,
    generate: Annotated[
        bool, typer.Option("--generate/--no-generate", help="Also let the model answer, and compare the words.")
    ] = True,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FOLDER",
            help="Where encodings and measurements stay for the next run; default a folder of the model in the cache.",
        ),
    ] = None,
    model: Model = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    home: Home = None,
) -> None:
    """How near injected facts come to the same facts as text: KL, top-1, gold NLL, F1; by category.

    Interrupted, the same command goes on where it stopped; the next one finds what is encoded.
    """
    ks = numbers(k)
    if (judge is None) != (judge_model is None):
        raise InvalidInputError("--judge and --judge-model go together: a URL, and the model's name there.")
    name = prepare(model, home)
    check_writable(json, plot)
    from inferscale_memory.bench import quality as script

    choice = script.Choice.of(
        listed(policy), listed(refresh), ks, questions=questions, order=order, seed=seed, ceilings=ceilings,
        generate=generate, categories=None if categories is None else tuple(listed(categories)),
    )  # fmt: skip
    called = None if judge is None else script.JudgeOptions(judge, judge_model or "")
    call(
        script.run, json, data=data, choice=choice, format=format, facts=facts, judge=called, model=name, plot=plot,
        keep=keep, home=home,
    )  # fmt: skip


def listed(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
