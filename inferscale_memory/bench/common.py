"""What the benchmarks share: an engine with a throw-away memory, statistics, tables, JSON files."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.prompts import check_encoded, check_whole, conversation
from inferscale_memory.errors import EngineError, UnsupportedModelError
from inferscale_memory.quality import Refresh
from inferscale_memory.throwaway import throwaway_home

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory
    from inferscale_memory.serving.engine import LocalEngine
    from inferscale_memory.serving.resolve import Plan

USER = "bench"
TABLE_WIDTH = 120
MAX_WIDTH = 1_000
_CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"


@dataclass(frozen=True)
class Bench:
    """An engine and an empty memory on it."""

    engine: LocalEngine
    memory: Memory

    def remember(self, count: int, tokens: int) -> None:
        """Save ``count`` synthetic facts of ``tokens`` tokens each and wait until they are encoded.

        Raises:
            InvalidInputError: so many different facts of that length do not exist.
            EngineError: some could not be encoded.
        """
        facts = make_facts(count, tokens, lambda text: len(self.engine.prompt.fact_tokens(text)))
        if not facts:
            return
        self.memory.add(facts, user_id=USER)
        self.wait_until_encoded(user_id=USER)

    def wait_until_encoded(self, **scope: Any) -> None:
        """Wait for the facts of a scope, or of everybody, with a bar.

        Raises:
            EngineError: some could not be encoded.
        """
        with progress("encoding facts") as bar:
            check_encoded(self.memory.flush(progress=bar, **scope))

    def plan(self, question: str, k: int, refresh: Refresh | None = None) -> Plan:
        """The plan of a question with ``k`` facts, see ``messages``.

        Raises:
            EngineError: not all of them were found, or some of the prompt is not injected as planned.
        """
        plan = self.engine.plan(self.messages(question, k, refresh), max_tokens=1, user_id=USER)
        return check_whole(plan, f"the prompt of {k} facts")

    def messages(self, question: str, k: int, refresh: Refresh | None = None) -> list[dict[str, str]]:
        """Recall ``k`` facts and put their handle into the system message; plain messages for 0.

        ``refresh`` of them are prefilled as text, by default as many as the settings say.

        Raises:
            EngineError: not all of them were found.
        """
        if not k:
            return conversation(question)
        handle = self.memory.recall(question, k=k, refresh=refresh, user_id=USER)
        if len(handle.facts) != k:
            raise EngineError(f"{len(handle.facts)} facts were recalled, wanted {k}: the others are too much alike.")
        return conversation(question, handle)


@contextmanager
def open_bench(
    model: str,
    home: Path | None,
    *,
    policy: str | None,
    max_model_len: int,
    keep: Path | None = None,
    **options: Any,
) -> Iterator[Bench]:
    """Start the engine in its own processes, as users run it, over a memory that is deleted at the end.

    Args:
        model: a demo model, a folder or a hub id.
        home: whose fetched models to use; nothing else of it is touched.
        policy: encoding policy of the memory; None takes the library's default.
        max_model_len: longest prompt; prompts are prefilled in one step.
        keep: folder of a memory that stays, so that the next run finds what is encoded; None is a throw-away one.
        options: more options of the engine, such as ``arena`` and ``max_num_seqs``.

    Raises:
        UnsupportedModelError: the model cannot be injected, so there is nothing to measure.
    """
    from inferscale_memory.memory import Memory

    with (
        throwaway_home(home, label="bench") as temporary,
        open_engine(
            model, folder := keep or temporary, max_model_len, "be measured, it is not injected", **options
        ) as engine,
        Memory(engine, home=folder, policy=policy) as memory,
    ):
        yield Bench(engine, memory)


@contextmanager
def open_engine(model: str, folder: Path, max_model_len: int, purpose: str, **options: Any) -> Iterator[LocalEngine]:
    """Start an engine that injects, with a spinner; closed at the end of the block.

    Args:
        model: a demo model, a folder or a hub id.
        folder: its home.
        max_model_len: longest prompt and answer, in tokens.
        purpose: what a model that is not injected cannot do, for the error.
        options: more options of the engine.

    Raises:
        UnsupportedModelError: the model cannot be injected.
    """
    from inferscale_memory.models import resolve_model
    from inferscale_memory.serving.engine import LocalEngine

    # Before the spinner: fetching a demo model shows a bar of its own.
    resolve_model(model, home=folder)
    with status(f"starting the engine with {model}"):
        engine = LocalEngine(model, home=folder, **{**engine_options(max_model_len), **options})
    with engine:
        if engine.unsupported is not None:
            raise UnsupportedModelError(f"{model} cannot {purpose}: {engine.unsupported}.")
        yield engine


def engine_options(max_model_len: int) -> dict[str, Any]:
    """Options of vLLM that a measurement needs: each prompt is prefilled in one step, its blocks may be hit again."""
    return {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max(2048, max_model_len),
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,
    }


def describe(engine: LocalEngine) -> str:
    """The engine in one line, for a JSON file that is read much later."""
    config = engine.client.vllm_config
    device = f"{config.device_config.device_type}, {len(os.sched_getaffinity(0))} cores"
    dtype = str(engine.client.model_config.dtype).removeprefix("torch.")
    mode = "eager" if engine.client.model_config.enforce_eager else "compiled"
    return f"vLLM {_vllm_version()}, {device}, {dtype}, {mode}, blocks of {engine.block_size} tokens, own processes"


def _vllm_version() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


def fresh_salt() -> str:
    """A cache salt that no block has, so that the native prefix cache cannot hit."""
    return secrets.token_hex(32)


@contextmanager
def unless_set(variable: str, value: str) -> Iterator[None]:
    """Set an environment variable for the length of the block, unless it is set."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]


@contextmanager
def cpu_cache(wanted_bytes: int) -> Iterator[None]:
    """Have vLLM's cache on a CPU hold ``wanted_bytes``, at least 4 GiB, unless ``VLLM_CPU_KVCACHE_SPACE`` is set.

    Where the cache is too small, users push each other's blocks out and every condition is measured at its worst.
    """
    with unless_set(_CPU_CACHE, str(max(4, -(-wanted_bytes // (1 << 30))))):
        yield


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """25th, 50th and 75th percentile."""
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), (25, 50, 75))
    return float(low), float(middle), float(high)


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A Markdown table: readable in a terminal, and pasted into a README as it is.

    Args:
        columns: key of a row -> heading.
        rows: a missing value is shown as a dash.
    """
    drawn = Table(box=box.MARKDOWN)
    for heading in columns.values():
        drawn.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        drawn.add_row(*(shown(row.get(key)) for key in columns))
    return drawn


def shown(value: Any) -> str:
    """One cell: a float with one decimal, below 10 with three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)


def show(*parts: Any) -> None:
    """Print titles and tables on stdout, never narrower than a table is: cut cells are no numbers."""
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH, *(_width(part) for part in parts if isinstance(part, Table)))
    for part in parts:
        console.print(part)


def _width(drawn: Table) -> int:
    """Characters that a table takes when nothing cuts it."""
    return Console(width=MAX_WIDTH).measure(drawn).maximum


def status(text: str) -> Any:
    """A spinner on stderr."""
    return Console(stderr=True, highlight=False).status(text)


def note(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


class Bar:
    """A progress bar on stderr that is called with the steps done and the steps in all."""

    def __init__(self, bar: Progress, label: str) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show ``done`` of ``total``."""
        self._bar.update(self._task, completed=done, total=total)

    def stage(self, label: str) -> None:
        """Begin something else, of which nothing is done yet."""
        self._bar.reset(self._task, description=label, total=None)


@contextmanager
def progress(label: str) -> Iterator[Bar]:
    """A progress bar for as long as the context lasts."""
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True, highlight=False), transient=True) as bar:
        yield Bar(bar, label)


def write_json(file: Path | None, result: Mapping[str, Any]) -> None:
    """Write a result whole or not at all; nothing for None."""
    if file is None:
        return
    aside = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        aside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
