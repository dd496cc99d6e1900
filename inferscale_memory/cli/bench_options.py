"""What the measuring commands share: options, and how a benchmark is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferscale_memory.cli.output import emit, stdout_reserved
from inferscale_memory.cli.session import stay_offline
from inferscale_memory.config import load_settings
from inferscale_memory.errors import InvalidInputError

STDOUT = Path("-")
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON; - is stdout, and nothing else.")
]
PlotFile = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows: .png, .svg or .pdf.")]
Ks = Annotated[str, typer.Option("--k", metavar="LIST", help="Numbers of facts, with commas.")]
FactTokens = Annotated[int, typer.Option("--fact-tokens", min=1, help="Length of a fact in tokens.")]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="What facts are encoded behind; default the library's. preamble encodes fastest; states differ, "
        "the cost of a question does not.",
    ),
]
Keep = Annotated[
    Path | None,
    typer.Option("--keep", metavar="FOLDER", help="Keep the memory there: the next run need not encode again."),
]


def call(run: Any, json: Path | None, **options: Any) -> None:
    """Call a benchmark, which writes its files itself; only ``-`` is printed here."""
    if json != STDOUT:
        run(json=json, **options)
        return
    with stdout_reserved():
        result = run(json=None, **options)
    emit(result)


def prepare(model: str | None, home: Path | None) -> str:
    """The model to measure, and no hub client on the network for a local one."""
    settings = load_settings(home)
    name = model or settings.model
    stay_offline(name, settings.embedder)
    return name


def numbers(text: str, option: str = "--k", what: str = "facts") -> tuple[int, ...]:
    """Read a list such as ``0,10,50``.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        given = tuple(int(part) for part in text.split(","))
    except ValueError:
        given = ()
    if not given or min(given) < 0:
        raise InvalidInputError(f"{option} {text!r} is no list of numbers of {what}; give one such as 0,10,50.")
    return given


def check_writable(*files: Path | None) -> None:
    """Refuse a target before minutes of measuring are spent on it."""
    for file in files:
        if file is not None and file != STDOUT and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise InvalidInputError(f"{file} cannot be written: its folder does not exist, or it is a folder.")
