"""``inferscale models``: list, fetch, path."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inferscale_memory import models
from inferscale_memory.cli.options import Home, Json
from inferscale_memory.cli.output import emit, stdout
from inferscale_memory.models.catalogue import find_or_raise

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The demo models, fetched once and kept.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A demo model: demo, smollm2-135m-instruct, ...")]


@app.command("list", epilog="Example: inferscale models list --json")
def list_models(home: Home = None, json: Json = False) -> None:
    """Show the demo models and whether they are there."""
    rows: list[dict[str, Any]] = []
    for model in models.DEMO_MODELS:
        folder = models.folder_of(model, home=home)
        rows.append(
            {
                "name": model.name,
                "aliases": list(model.aliases),
                "purpose": model.purpose,
                "licence": model.licence,
                "ready": models.is_ready(model, folder),
                "path": str(folder),
                "source": f"{model.package}=={model.version}",
                "sha256": model.sha256,
            }
        )
    if json:
        emit({"models": rows})
        return
    for row in rows:
        stdout().print(f"{row['name']} ({', '.join(row['aliases'])}): {row['purpose']}, {row['licence']}", markup=False)
        stdout().print(f"    {'ready' if row['ready'] else 'not fetched'}: {row['path']}", markup=False)


@app.command("fetch", epilog="Example: inferscale models fetch demo")
def fetch(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Which ones; all if left out.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Fetch demo models: pinned by version and sha256, converted once."""
    wanted = [find_or_raise(name) for name in names] if names else models.DEMO_MODELS
    paths = {model.name: str(models.ensure(model.name, home=home)) for model in wanted}
    if json:
        emit({"models": [{"name": name, "path": path} for name, path in paths.items()]})
        return
    for name, path in paths.items():
        stdout().print(f"{name}  {path}", markup=False)


@app.command("path", epilog="Example: inferscale models path demo")
def path(name: Name, home: Home = None, json: Json = False) -> None:
    """Print where a demo model lies, fetching it if it is not there."""
    model = find_or_raise(name)
    folder = models.ensure(model.name, home=home)
    if json:
        emit({"name": model.name, "path": str(folder)})
    else:
        stdout().print(str(folder), markup=False)
