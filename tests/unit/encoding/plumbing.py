"""A stand-in for the engine that writes real chunk files through a real ChunkStore, and a world around it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sqlalchemy import select

from inferscale_memory.contexts import MemoryContexts
from inferscale_memory.db import open_database
from inferscale_memory.encoding.encoder import BackgroundEncoder, Retry
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.policies import ContextPolicy, parse_policy
from inferscale_memory.encoding.tables import ChunkContextRow
from inferscale_memory.facts import Fact, FactStore, NewFact, NewTurn
from inferscale_memory.kv import Chunk, ChunkStore, context_digest
from inferscale_memory.retrieval import CallableEmbedder, NumpyIndex, Retriever
from inferscale_memory.scope import Scope
from inferscale_memory.serving.protocol import CaptureResult, CaptureSpan

MODEL = hashlib.sha256(b"a model").hexdigest()
ALICE, BOB = Scope.of(user_id="alice"), Scope.of(user_id="bob")


class Bytes:
    """A tokenizer of bytes: enough where only lengths and identity matter."""

    def neutral_preamble(self) -> tuple[int, ...]:
        return (256, 257)

    def fact_tokens(self, text: str) -> tuple[int, ...]:
        return tuple(f"- {text}\n".encode())


class WritingEngine:
    """Writes a chunk per span. Hooks let a test interfere before or after the file is written."""

    fingerprint = MODEL
    prompt = Bytes()

    def __init__(self, chunks: ChunkStore, max_model_len: int = 4096, seconds: float = 0.0) -> None:
        self.chunks, self.max_model_len, self.seconds = chunks, max_model_len, seconds
        self.salts: list[str] = []
        self.texts: list[str] = []
        self.at_once = self.most_at_once = 0
        self.before: Callable[[str], object] = lambda text: None
        self.after: Callable[[str], object] = lambda text: None

    async def capture(self, token_ids: Sequence[int], spans: Sequence[CaptureSpan], *, salt: str) -> CaptureResult:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            [span] = spans
            text = bytes(token_ids[span.start : span.end]).decode()[2:-1]
            self.texts.append(text)
            self.salts.append(salt)
            await asyncio.sleep(self.seconds)
            refusal = self.before(text)
            if isinstance(refusal, str):
                return CaptureResult(frozenset(), {span.key: refusal})
            self.chunks.put(make_chunk(span, token_ids, self.fingerprint))
            self.after(text)
            return CaptureResult(frozenset({span.key}), {})
        finally:
            self.at_once -= 1


def make_chunk(span: CaptureSpan, token_ids: Sequence[int], fingerprint: str = MODEL) -> Chunk:
    states = torch.zeros(1, span.end - span.start, 1, 2)
    return Chunk(
        key=span.key,
        token_ids=tuple(token_ids[span.start : span.end]),
        fingerprint=fingerprint,
        context_digest=context_digest(token_ids[: span.start]),
        layer_names=("layer",),
        keys=states,
        values=states,
    )


class Angles:
    """Embeds a text as the direction that its first word says, in degrees; ``broken`` texts fail."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.dead = False
        self.calls: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        if self.dead or self.broken & set(texts):
            raise ConnectionError("the embedding server does not answer")
        angles = np.radians([float(text.split()[0]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@dataclass
class World:
    """A database and a chunk folder, opened as one process would."""

    store: FactStore
    ledger: ChunkLedger
    chunks: ChunkStore
    engine: WritingEngine
    policy: ContextPolicy
    encoder: BackgroundEncoder
    embedder: Angles

    def save(self, *texts: str, scope: Scope = ALICE) -> tuple[Fact, ...]:
        result = self.store.add([NewFact(text) for text in texts], scope)
        self.encoder.notify()
        return result.facts

    def say(self, *texts: str, scope: Scope = ALICE) -> tuple[Fact, ...]:
        turns = [NewTurn("user", text) for text in texts]
        return self.store.add([NewFact(t.text, turn_ids=(t.id,)) for t in turns], scope, turns=turns).facts

    def delete(self, fact: Fact):
        with self.store.transaction() as tx:
            self.store.delete(fact.id, fact.scope, tx=tx)
            forgotten = self.ledger.forget([fact.id], fact.turn_ids, tx)
        self.encoder.notify()
        return forgotten

    def update(self, fact: Fact, text: str):
        with self.store.transaction() as tx:
            self.store.update(fact.id, fact.scope, text=text, tx=tx)
            forgotten = self.ledger.forget([fact.id], tx=tx)
        self.encoder.notify()
        return forgotten

    def ready(self, facts: Sequence[Fact]) -> dict[str, str]:
        """Key of the ready chunk of each fact that has one."""
        found = self.ledger.lookup([fact.id for fact in facts], MODEL, self.policy.name)
        return {fact_id: ref.key for fact_id, ref in found.items()}

    def seen_by(self, fact: Fact) -> list[str]:
        """Texts that the served chunk of a fact was encoded behind, in the order of its prompt."""
        query = select(ChunkContextRow.fact_id).where(ChunkContextRow.kept.is_(True)).order_by(ChunkContextRow.id)
        with self.store.transaction() as tx:
            ids = tx.scalars(query.where(ChunkContextRow.chunk_key == self.ready([fact])[fact.id])).all()
        facts = self.store.get_many(ids)
        return [facts[fact_id].text for fact_id in ids]


def open_world(
    folder: Path, policy: str = "preceding:2:fact", reencode: Pace | None = None, **engine_options
) -> World:  # fmt: skip
    """Open a folder that has a migrated database."""
    database = open_database(f"sqlite:///{folder / 'facts.db'}")
    store, ledger, chunks = FactStore(database), ChunkLedger(database), ChunkStore(folder / "kv")
    engine, parsed = WritingEngine(chunks, **engine_options), parse_policy(policy)
    embedder = Angles()
    retriever = Retriever(store, CallableEmbedder(embedder, id="angles", dim=2), NumpyIndex())
    encoder = BackgroundEncoder(
        MemoryContexts(store, lambda: retriever), ledger, chunks, engine, parsed, lambda fact: f"salt of {fact.scope}",
        concurrency=4, retry=Retry(attempts=3, first_pause=0.001, longest_pause=0.002), reencode=reencode,
    )  # fmt: skip
    return World(store, ledger, chunks, engine, parsed, encoder, embedder)
