"""``inferscale bench memory``: bytes per remembered fact on every tier, and what other models would need."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from inferscale_memory.bench.common import USER, Bench, describe, open_bench, show, table, write_json
from inferscale_memory.bench.facts import make_facts
from inferscale_memory.bench.panels import Panel, draw
from inferscale_memory.bench.plots import check_plot
from inferscale_memory.bench.shapes import PUBLISHED, KVShape, capacity, shape_of_model
from inferscale_memory.bench.standins import RandomEmbedder
from inferscale_memory.errors import EngineError, InvalidInputError
from inferscale_memory.models import resolve_model

POLICY = "preamble"
PROMPT_ROOM = 256
EMBEDDING = 384
"""Elements of an all-MiniLM-L6-v2 vector."""
ROWS_OF_TEXT = 2_000
TIERS = {"tier": "tier", "bytes_per_fact": "bytes per fact", "bytes_per_token": "per token", "what": "what"}
CAPACITY = {
    "model": "model",
    "layers": "layers",
    "kv_heads": "KV heads",
    "head_size": "head size",
    "dtype": "dtype",
    "bytes_per_token": "bytes/token",
    "bytes_per_fact": "bytes/fact",
    "facts_per_gib": "facts per GiB",
    "facts_per_tb": "facts per TB",
}


def run(
    *,
    facts: int = 50,
    fact_tokens: int = 25,
    measured: bool = True,
    model: str = "demo",
    json: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Measure, compute, print two tables, write the files.

    The first table is measured on ``model``: chunk files and chunks as the workers hold them, of ``facts`` encoded
    facts; vectors and rows of the database, of 2,000 facts that are not encoded (vectors are random ones of the
    default embedder's length). The second is computed from the models' published configs: tensors only.

    Args:
        facts: how many are encoded.
        fact_tokens: length of a fact in tokens.
        measured: ``False`` computes the second table only, without an engine.
        model: a demo model, a folder or a hub id.
        json: file for the result.
        plot: file for the plot; its suffix is the format.
        home: whose fetched models to use.

    Returns:
        ``{"model", "fact_tokens", "tiers": [...], "capacity": [...]}``.

    Raises:
        InvalidInputError: nothing to measure.
        UnsupportedModelError: the model cannot be injected.
        EngineError: facts were not encoded.
    """
    if min(facts, fact_tokens) < 1:
        raise InvalidInputError(f"{facts} facts of {fact_tokens} tokens: nothing to measure.")
    check_plot(plot)
    shape = shape_of_model(resolve_model(model, home=home))
    result: dict[str, Any] = {"model": model, "fact_tokens": fact_tokens, "engine": "computed", "tiers": []}
    if measured:
        with open_bench(model, home, policy=POLICY, max_model_len=512 + PROMPT_ROOM) as bench:
            result["engine"] = describe(bench.engine)
            result["tiers"] = measure(bench, facts, fact_tokens)
        show(f"Bytes per fact of {fact_tokens} tokens, measured with {model}:", table(TIERS, result["tiers"]))
    result["capacity"] = capacities(model, shape, fact_tokens)
    show(f"Computed from the config, facts of {fact_tokens} tokens:", table(CAPACITY, result["capacity"]))
    write_json(json, result)
    if plot is not None:
        plot_footprint(result, plot)
    return result


def capacities(model: str, shape: KVShape, fact_tokens: int) -> list[dict[str, Any]]:
    """The computed rows: the model that is measured, then the published ones."""
    return [capacity(name, each, fact_tokens) for name, each in {model: shape, **PUBLISHED}.items()]


def measure(bench: Bench, facts: int, fact_tokens: int) -> list[dict[str, Any]]:
    """The measured rows, on an engine that runs and a memory that is empty."""
    bench.remember(facts, fact_tokens)
    chunks = list(_chunks(bench))
    if len(chunks) != facts:
        raise EngineError(f"{len(chunks)} chunks were found for {facts} facts.")
    in_files = sum(file for file, _ in chunks)
    in_memory = sum(held for _, held in chunks)
    texts = make_facts(ROWS_OF_TEXT, fact_tokens, lambda text: len(bench.engine.prompt.fact_tokens(text)))
    text, vector = rows_of_text(texts)
    tiers = {
        "disk": (in_files / facts, "chunk file: header, token ids, keys, values, MAC"),
        "workers' memory": (in_memory / facts, "keys and values of the chunk, without Python objects"),
        "vector": (vector, "database row, index included; the search index holds 4 bytes per element besides"),
        "text": (text, "database rows, indexes included"),
    }
    return [
        {
            "tier": tier,
            "bytes_per_fact": round(size, 1),
            "bytes_per_token": round(size / fact_tokens, 2),
            "what": what,
        }
        for tier, (size, what) in tiers.items()
    ]


def _chunks(bench: Bench) -> Iterator[tuple[int, int]]:
    """Of every encoded fact: bytes of its files, and of its tensors."""
    memory = bench.memory
    facts = memory.list(user_id=USER, limit=1000).facts
    refs = memory.ledger.lookup([fact.id for fact in facts], bench.engine.fingerprint, memory.policy.name)
    for ref in refs.values():
        chunk = memory.chunks.find(ref.key, bench.engine.fingerprint)
        files = [path for path in memory.settings.kv_folder.rglob(f"*{ref.key}*") if path.is_file()]
        if chunk is None or not files:
            raise EngineError(f"the chunk {ref.key[:12]} is not on disk.")
        yield sum(path.stat().st_size for path in files), chunk.nbytes * bench.engine.world


def rows_of_text(texts: list[str]) -> tuple[float, float]:
    """Bytes that a fact takes in a SQLite database: its text with all indexes, and its vector on top."""
    from inferscale_memory.memory import Memory

    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as folder:
        database = Path(folder) / "facts.db"
        url = f"sqlite:///{database}"
        with Memory(home=folder, database_url=url, embedder=RandomEmbedder(EMBEDDING), index="numpy") as memory:
            empty = _pages(database)
            memory.add(texts, user_id=USER)
            with_text = _pages(database)
            memory.search("Who?", k=1, user_id=USER)
            with_vectors = _pages(database)
    return (with_text - empty) / len(texts), (with_vectors - with_text) / len(texts)


def _pages(database: Path) -> int:
    """Bytes of all pages in use."""
    with closing(sqlite3.connect(database)) as connection:
        count, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int(np.int64(count - free) * size)


def plot_footprint(result: dict[str, Any], file: Path) -> None:
    """Draw the capacity table: KiB per token, and facts per GiB."""
    rows = result["capacity"]
    size = {row["model"]: row["bytes_per_token"] / 1024 for row in rows}
    facts = {row["model"]: row["facts_per_gib"] for row in rows}
    panels = [
        Panel("Attention states of a token", "", "KiB", bars=size),
        Panel(f"Facts of {result['fact_tokens']} tokens per GiB", "", "facts", bars=facts, log="y"),
    ]
    draw(panels, "computed from the models' configs, bf16 unless they say otherwise", file)
