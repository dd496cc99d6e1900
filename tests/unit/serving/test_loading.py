"""Loads on the worker: from which tier, in how many passes, and what happens to what cannot be had."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the connector's workers need torch")
pytest.importorskip("vllm", reason="the connector's metadata are vLLM's classes")

from inferscale_memory.kv import Chunk, ChunkPool, ChunkStore, chunk_key, context_digest  # noqa: E402
from inferscale_memory.kv.arena import Arena  # noqa: E402
from inferscale_memory.serving.loading import Loader  # noqa: E402
from inferscale_memory.serving.metadata import LoadRun  # noqa: E402
from inferscale_memory.serving.prefetch import Prefetcher  # noqa: E402
from inferscale_memory.serving.protocol import TierTokens  # noqa: E402
from inferscale_memory.serving.writers import Rows  # noqa: E402

MODEL = hashlib.sha256(b"a model").hexdigest()
LAYERS = ("layers.0.attn", "layers.1.attn")
TOKENS = 5
TOKEN_BYTES = 2 * 2 * 2 * 4 * 2
BLOCK = 4


def chunk_of(number: int, tokens: int = TOKENS) -> Chunk:
    ids = tuple(range(100 * number, 100 * number + tokens))
    states = torch.randn((2, 2, tokens, 2, 4), generator=torch.Generator().manual_seed(number)).to(torch.bfloat16)
    return Chunk(
        key=chunk_key(tenant="t", owner="o", fingerprint=MODEL, context_ids=(1,), token_ids=ids),
        token_ids=ids,
        fingerprint=MODEL,
        context_digest=context_digest((1,)),
        layer_names=LAYERS,
        keys=states[0],
        values=states[1],
    )


def run_of(chunks: list[Chunk], begin: int = 0, stop: int | None = None, name: str = "r", start: int = 0) -> LoadRun:
    ends = tuple(start + int(end) for end in np.cumsum([chunk.num_tokens for chunk in chunks]))
    tokens = np.array([token for chunk in chunks for token in chunk.token_ids], dtype=np.int32)
    blocks = list(range(10, 10 + -(-ends[-1] // BLOCK)))
    keys = tuple(chunk.key for chunk in chunks)
    return LoadRun(name, begin, ends[-1] if stop is None else stop, start, blocks, keys, ends, tokens.tobytes())


@dataclass
class Paper:
    """A writer that writes down what it was given, and what the arena held there."""

    arena: Arena

    def wipe(self) -> None:
        """Nothing is left."""

    passes: list[Rows] = field(default_factory=list)
    keys: list[torch.Tensor] = field(default_factory=list)
    name: str = "paper"

    def write(self, rows: Rows) -> None:
        self.passes.append(rows)
        self.keys.append(self.arena.keys.index_select(1, torch.from_numpy(rows.source)))


@pytest.fixture
def store(tmp_path):
    return ChunkStore(tmp_path / "kv")


def loader_of(store: ChunkStore, tokens: int = 100, host: int = 0) -> Loader:
    arena = Arena(LAYERS, 2, 4, torch.bfloat16, torch.device("cpu"), tokens * TOKEN_BYTES)
    return Loader(arena, ChunkPool(host) if host else None, store, MODEL, block_size=BLOCK)


@pytest.fixture
def loader(store):
    return loader_of(store)


@pytest.fixture
def paper(loader):
    return Paper(loader.arena)


def test_all_requests_of_a_step_are_written_in_one_pass(loader, paper):
    chunks = [chunk_of(number) for number in range(4)]
    for chunk in chunks:
        loader.arena.put(chunk)
    outcome = loader.load([run_of(chunks[:3]), run_of(chunks[2:], name="other")], paper)
    assert not outcome.errors
    (rows,) = paper.passes
    assert rows.positions.tolist() == [*range(15), *range(10)]
    assert rows.slots.tolist() == [*range(40, 55), *range(40, 50)]
    assert torch.equal(paper.keys[0], torch.cat([chunk.keys for chunk in (*chunks[:3], *chunks[2:])], dim=1))


def test_only_what_is_asked_for_of_a_run_is_written(loader, paper):
    chunks = [chunk_of(number) for number in range(4)]
    for chunk in chunks:
        loader.arena.put(chunk)
    run = run_of(chunks[1:3], begin=8, stop=13, start=5)
    assert not loader.load([run], paper).errors
    assert paper.passes[0].positions.tolist() == [8, 9, 10, 11, 12]
    assert torch.equal(paper.keys[0], torch.cat([chunk.keys for chunk in chunks], dim=1)[:, 8:13])


def test_a_miss_in_the_arena_is_served_from_disk_once(loader, paper, store):
    chunk = chunk_of(0)
    store.put(chunk)
    assert not loader.load([run_of([chunk])], paper).errors
    assert loader.loaded == TierTokens(disk=TOKENS)
    assert not loader.load([run_of([chunk])], paper).errors
    assert loader.loaded == TierTokens(arena=TOKENS, disk=TOKENS)
    assert torch.equal(paper.keys[0], chunk.keys)


def test_a_miss_in_the_arena_is_served_from_host_memory_before_disk(store):
    loader = loader_of(store, tokens=2 * TOKENS, host=1 << 20)
    paper, chunks = Paper(loader.arena), [chunk_of(number) for number in range(3)]
    for chunk in chunks:
        store.put(chunk)
        loader.load([run_of([chunk])], paper)
    assert chunks[0].key not in loader.arena, "the arena holds two of the three"
    before = loader.loaded
    outcome = loader.load([run_of([chunks[0], chunk_of(9)])], paper)
    assert loader.loaded.since(before) == TierTokens(host=TOKENS)
    assert outcome.errors == {"r": "chunk_unreadable"}


def test_what_leaves_the_arena_for_another_chunk_is_told(store):
    loader = loader_of(store, tokens=TOKENS)
    for number in range(2):
        store.put(chunk_of(number))
        loader.load([run_of([chunk_of(number)])], Paper(loader.arena))
    assert list(loader.arena.evicted) == [chunk_of(0).key]


def test_a_step_that_needs_more_than_the_arena_holds_is_written_in_several_passes(store):
    loader = loader_of(store, tokens=2 * TOKENS)
    paper = Paper(loader.arena)
    chunks = [chunk_of(number) for number in range(6)]
    for chunk in chunks:
        store.put(chunk)
    runs = [run_of(chunks[at : at + 2], name=str(at)) for at in (0, 2, 4)]
    assert not loader.load(runs, paper).errors
    assert [keys.shape[1] for keys in paper.keys] == [10, 10, 10]
    assert torch.equal(torch.cat(paper.keys, dim=1), torch.cat([chunk.keys for chunk in chunks], dim=1))
    loader.arena.check_integrity()


def test_of_a_request_that_needs_more_than_the_arena_holds_the_rest_is_prefilled(store):
    loader = loader_of(store, tokens=2 * TOKENS)
    chunks = [chunk_of(number) for number in range(3)]
    for chunk in chunks:
        store.put(chunk)
    paper = Paper(loader.arena)
    outcome = loader.load([run_of(chunks)], paper)
    assert outcome.errors == {"r": "arena_too_small"}
    assert outcome.bad_blocks == {12, 13}
    assert paper.passes[0].positions.tolist() == list(range(8)), "as far as it goes"


def test_a_miss_keeps_the_whole_blocks_before_it(loader, paper):
    chunks = [chunk_of(number) for number in range(3)]
    for chunk in chunks[:2]:
        loader.arena.put(chunk)
    outcome = loader.load([run_of(chunks)], paper)
    assert (outcome.errors, outcome.bad_blocks) == ({"r": "chunk_unreadable"}, {12, 13})
    assert outcome.gone == {chunks[2].key}
    assert paper.passes[0].positions.tolist() == list(range(8))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_chunk_of_other_tokens_is_never_written(loader, paper, at):
    chunks = [chunk_of(number) for number in range(3)]
    for chunk in chunks:
        loader.arena.put(chunk)
    run = run_of(chunks)
    tokens = np.frombuffer(run.tokens, dtype=np.int32).copy()
    tokens[at * TOKENS + 2] += 1
    run.tokens = tokens.tobytes()
    outcome = loader.load([run], paper)
    assert outcome.errors == {"r": "chunk_of_other_tokens"}
    written = sum(len(rows.positions) for rows in paper.passes)
    assert written == at * TOKENS // BLOCK * BLOCK


def test_a_chunk_of_another_length_is_never_written(loader, paper):
    chunks = [chunk_of(0), chunk_of(1)]
    for chunk in chunks:
        loader.arena.put(chunk)
    run = run_of(chunks)
    run.ends = (TOKENS, 2 * TOKENS + 1)
    assert loader.load([run], paper).errors == {"r": "chunk_shape"}


def test_without_a_known_rotation_nothing_is_written(loader):
    loader.arena.put(chunk_of(0))
    outcome = loader.load([run_of([chunk_of(0)])], None)
    assert (outcome.errors, outcome.bad_blocks) == ({"r": "rotary_unknown"}, {10, 11})


def test_a_chunk_deleted_while_it_is_read_does_not_come_back(loader, paper, store, monkeypatch):
    chunk = chunk_of(0)
    store.put(chunk)
    get = store.get

    def read_then_lose(key: str, fingerprint: str) -> Chunk:
        found = get(key, fingerprint)
        store.delete([key])
        return found

    monkeypatch.setattr(store, "get", read_then_lose)
    assert loader.load([run_of([chunk])], paper).errors == {"r": "chunk_unreadable"}
    assert chunk.key not in loader.arena


def test_a_chunk_deleted_before_host_memory_was_told_does_not_come_back(store):
    loader = loader_of(store, host=1 << 20)
    chunk = chunk_of(0)
    loader.keep(chunk)
    store.delete([chunk.key])
    assert loader.load([run_of([chunk])], Paper(loader.arena)).errors == {"r": "chunk_unreadable"}
    assert chunk.key not in loader.arena
    assert not loader.host.exists(chunk.key)


def test_host_memory_that_cannot_be_had_is_done_without(store, monkeypatch):
    loader = loader_of(store, host=1 << 20)
    monkeypatch.setattr(loader.host, "put", lambda chunk: (_ for _ in ()).throw(RuntimeError("cannot pin")))
    loader.keep(chunk_of(0))
    paper = Paper(loader.arena)
    assert not loader.load([run_of([chunk_of(0)])], paper).errors
    assert torch.equal(paper.keys[0], chunk_of(0).keys)


def test_a_recall_brings_its_chunks_in_before_the_question(loader, store):
    chunks = [chunk_of(number) for number in range(3)]
    for chunk in chunks:
        store.put(chunk)
    prefetcher = Prefetcher(loader)
    prefetcher.ask([chunk_of(9).key, *(chunk.key for chunk in chunks)])
    prefetcher.ask([])
    while not all(chunk.key in loader.arena for chunk in chunks):
        time.sleep(0.001)  # ends with the test's own limit if it never happens
    prefetcher.close()
    loader.arena.check_integrity()


def test_a_prefetcher_that_is_closed_leaves_what_waits(loader, store):
    prefetcher = Prefetcher(loader)
    prefetcher.close()
    for number in range(200):
        prefetcher.ask([chunk_of(number).key])
    prefetcher.close()
    prefetcher.close()
