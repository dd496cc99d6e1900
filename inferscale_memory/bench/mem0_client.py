"""Real Mem0 for the throughput benchmark, in a virtual environment and a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from inferscale_memory.config import load_settings
from inferscale_memory.errors import EngineError, InvalidInputError

REQUIREMENT = "mem0ai>=2.2,<3"
WORKER = Path(__file__).with_name("mem0_worker.py")
LINE_BYTES = 1 << 26
START_SECONDS = 300.0
PINGS = 20
_CHECK = "import mem0, qdrant_client, sentence_transformers, torch; print(mem0.__version__, torch.__version__)"


def mem0_folder(home: Path | None) -> Path:
    """Where Mem0's virtual environment lies: beside the fetched models, for it can be made again as they can."""
    return load_settings(home).models_folder / "mem0-venv"


def mem0_python(home: Path | None, given: Path | None) -> Path:
    """The interpreter that has Mem0.

    Raises:
        InvalidInputError: there is none.
    """
    python = given or mem0_folder(home) / "bin" / "python"
    if not python.is_file():
        raise InvalidInputError(
            f"{python} does not exist, so there is no Mem0 to measure. Run: inferscale bench mem0-setup "
            "(or give --mem0-python an interpreter that can import mem0)."
        )
    return python


def set_up(home: Path | None) -> dict[str, str]:
    """Make Mem0's virtual environment, or bring it up to date; returns its ``python`` and versions by package.

    Mem0's own packages go into it. What it shares with this environment (torch, sentence-transformers and all that is
    new enough) is used from here: pip would bring another torch of several GB, and the embedders would not be the same.

    Raises:
        EngineError: pip failed, or what is installed does not work together.
    """
    folder = mem0_folder(home)
    python = folder / "bin" / "python"
    _call([sys.executable, "-m", "venv", str(folder)], "the virtual environment cannot be made")
    own = Path(_call([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], "it does not run"))
    # Read after its own packages, so those win; pip counts the shared ones as installed and keeps those that fit.
    shared = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (own / "zz_shared_with_inferscale.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT]
    _call(install, f"pip cannot install {REQUIREMENT}")
    mem0, torch = _call([str(python), "-c", _CHECK], "Mem0 cannot be imported beside this torch").split()[-2:]
    return {"python": str(python), "mem0ai": mem0, "torch": torch}


def _call(command: Sequence[str], failure: str) -> str:
    quiet = {**os.environ, "MEM0_TELEMETRY": "False"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    if done.returncode:
        raise EngineError(f"{failure}: {' '.join(command)} said: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout.strip()


class Mem0Client:
    """Talks to ``mem0_worker.py``. Requests may be made at once; the worker answers one after the other."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self.versions: dict[str, str] = {}

    async def add(self, user: str, texts: Sequence[str]) -> int:
        """Save texts of a user with ``infer=False``; returns how many were new."""
        return int((await self._call(op="add", user=user, texts=list(texts)))["added"])

    async def search(self, user: str, query: str, k: int) -> tuple[str, ...]:
        """At most ``k`` texts of a user, best first.

        Raises:
            EngineError: Mem0 raised, or its process died.
        """
        return tuple((await self._call(op="search", user=user, query=query, k=k))["texts"])

    async def pipe_ms(self, texts: Sequence[str]) -> float:
        """Milliseconds that a request and an answer with ``texts`` in both take through the pipe, median of a few."""
        taken = []
        for _ in range(PINGS):
            start = time.perf_counter()
            await self._call(op="ping", texts=list(texts))
            taken.append(1e3 * (time.perf_counter() - start))
        return statistics.median(taken)

    async def _call(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._next += 1
        number = self._next
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write((json.dumps({"id": number, **request}) + "\n").encode())
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead() from None
        answer = await future
        if "error" in answer:
            raise EngineError(f"Mem0 failed: {answer['error']}")
        return answer

    async def _read(self) -> None:
        """Hand each answer to who waits for it, until the process ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"], None)
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._dead())

    async def _greeting(self) -> None:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            raise EngineError(f"Mem0 did not start within {START_SECONDS:.0f} s: {self._last_words()}") from None
        if not line:
            raise self._dead()
        self.versions = json.loads(line)["versions"]

    def _dead(self) -> EngineError:
        return EngineError(f"Mem0's process ended: {self._last_words()}")

    def _last_words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace").strip()[-500:] or "it said nothing"


@asynccontextmanager
async def open_mem0(python: Path, folder: Path, embedder: str, dim: int) -> AsyncIterator[Mem0Client]:
    """Start Mem0; its process is gone at the end of the block.

    Args:
        python: interpreter that has it.
        folder: where its stores lie; found again if they are there.
        embedder: folder or hub id of the embedding model, for Mem0's Hugging Face embedder.
        dim: length of its vectors.

    Raises:
        EngineError: it does not start.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "worker.log"
    # Nothing of this process's Python path: the worker has its own packages.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            str(python), str(WORKER), str(folder), embedder, str(dim),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, limit=LINE_BYTES, env=environment,
        )  # fmt: skip
    client = Mem0Client(process, log)
    reader: asyncio.Task[None] | None = None
    try:
        await client._greeting()
        reader = asyncio.ensure_future(client._read())
        yield client
    finally:
        if reader is not None:
            reader.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
