"""``inferscale doctor``: is this machine fit, is the store healthy, does a round trip work."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from inferscale_memory.cli import checks
from inferscale_memory.cli.checks import Check
from inferscale_memory.cli.options import EngineOptions, Home, Json, Model, pairs
from inferscale_memory.cli.output import emit, status, stdout, stdout_reserved
from inferscale_memory.config import load_settings

EXAMPLE = "Example: inferscale doctor --model demo (or, in a second: inferscale doctor --no-engine)"

_MARKS = {"ok": ("ok     ", "green"), "warn": ("warning", "yellow"), "fail": ("failed ", "red")}


def doctor(
    model: Model = None,
    engine: Annotated[bool, typer.Option(help="Start an engine: model support, tap, round trip.")] = True,
    engine_options: EngineOptions = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Check versions, device, settings, store, model support, and one round trip in a folder of its own."""
    settings = load_settings(home)
    options = pairs(engine_options, "--vllm")
    found = [*checks.versions(), checks.device(), checks.variables(), *checks.stores(settings)]
    found += checks.demo_models(settings)
    if engine:
        with stdout_reserved(), status("starting an engine"):
            found += checks.round_trip(model or settings.model, settings, options)
    healthy = all(check.state != "fail" for check in found)
    if json:
        emit({"ok": healthy, "checks": [check._asdict() for check in found]})
    else:
        for check in found:
            stdout().print(_line(check))
    if not healthy:
        failed = ", ".join(check.name for check in found if check.state == "fail")
        typer.echo(f"inferscale: not healthy: {failed}", err=True)
        raise typer.Exit(1)


def _line(check: Check) -> Text:
    mark, style = _MARKS[check.state]
    return Text.assemble((mark, style), f"  {check.name:<24} {check.detail}")
