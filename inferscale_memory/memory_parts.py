"""Opening and closing a memory: settings, database, chunk folder, secret, embedder, engine."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from inferscale_memory import metrics
from inferscale_memory.ahead import FetchAhead, Wanted
from inferscale_memory.config import Settings, load_settings, unknown_variables
from inferscale_memory.contexts import MemoryContexts
from inferscale_memory.encoding.encoder import BackgroundEncoder
from inferscale_memory.encoding.encoders import Encoders
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.policies import Policy, chunk_policies, parse_policy, rungs_of
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import StoreError
from inferscale_memory.facts import FactExtractor, FactStore
from inferscale_memory.handles import HandleBook
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.migrations import upgrade
from inferscale_memory.models import resolve_model
from inferscale_memory.opened import note_opened, place_of
from inferscale_memory.opening import (
    check_embedder,
    check_index,
    check_same_folder,
    is_embedder,
    load_secrets,
    open_folder_database,
)
from inferscale_memory.order import PlacedFacts
from inferscale_memory.quality import Quality
from inferscale_memory.quality.dial import Dial
from inferscale_memory.resolver import EngineSide, MemoryResolver
from inferscale_memory.retrieval import (
    CallableEmbedder,
    Embedder,
    Retriever,
    SentenceTransformerEmbedder,
    VectorIndex,
    open_index,
)
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.memory import Memory
    from inferscale_memory.serving.engine import LocalEngine

logger = logging.getLogger(__name__)

SCOPE_IDS = frozenset({"user_id", "agent_id", "session_id", "tenant_id"})
ENCODING_AT_ONCE = 8
"""Encode requests in the engine at once."""
_told: set[str] = set()  # variables that were warned about in this process


class MemoryParts:
    """What a memory is made of. The arguments are those of ``Memory``."""

    def __init__(
        self,
        engine: LocalEngine | None = None,
        *,
        home: str | Path | None = None,
        database_url: str | None = None,
        embedder: Embedder | Callable[[Sequence[str]], Any] | str | None = None,
        index: VectorIndex | str | None = None,
        policy: str | Policy | None = None,
        quality: Quality | None = None,
        secret: bytes | None = None,
        extractor: FactExtractor | None = None,
        encode: bool = True,
    ) -> None:
        if home is None and engine is not None:
            home = engine.settings.home
        self.settings: Settings = load_settings(home, database_url=database_url, quality=quality)
        _warn_of_unknown_variables()
        if engine is not None:
            check_same_folder(engine.settings.kv_folder, self.settings.kv_folder)
        check_embedder(embedder)
        check_index(index or self.settings.index)
        self.policy = parse_policy(policy or self.settings.policy)
        self._extractor, self._embedder, self._index = extractor, embedder, index
        self._retriever: Retriever | None = None
        self._opening = threading.Lock()
        self._scores: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._scores_lock = threading.Lock()
        self._placed = PlacedFacts()
        self._closed = False
        self.engine: LocalEngine | None = None
        self.encoder: Encoders | None = None
        self._resolver: MemoryResolver | None = None
        self._ahead: FetchAhead | None = None
        self._database = open_folder_database(self.settings)
        try:
            upgrade(self._database)
            self.store = FactStore(self._database)
            self.contexts = MemoryContexts(self.store, lambda: self.retriever)
            self.ledger = ChunkLedger(self._database)
            self.chunks = ChunkStore(self.settings.kv_folder, world=1 if engine is None else engine.world)
            self._secrets = load_secrets(secret, self.settings)
            self.handles = HandleBook(self._database, self._secrets, ttl=timedelta(seconds=self.settings.handle_ttl))
            self._tidy()
            self.dial = Dial(self.settings, self.policy.name)
            if engine is not None:
                self._bind(engine, encode)
        except BaseException:
            self.close()
            raise
        note_opened(cast("Memory", self))

    def _tidy(self) -> None:
        """Finish what a crash, a full disk or a reader in the way left undone."""
        for work in (self.store.scrub, self.handles.purge_expired, lambda: purge(self.ledger, self.chunks)):
            try:
                work()
            except StoreError as error:
                logger.warning("left undone until the next opening: %s", error)

    def _bind(self, engine: LocalEngine, encode: bool) -> None:
        self.engine = engine
        side = EngineSide(engine.fingerprint, engine.prompt)
        self._resolver = MemoryResolver(
            self.store, self.ledger, self.handles, self._secrets, self.policy, side, self._look_for, self._scores_of
        )
        engine.bind(self._resolver)
        self.dial = Dial(self.settings, self.policy.name, engine.fingerprint, self._resolver.count_tokens)
        if engine.unsupported is None and not self.policy.positional:
            self._ahead = FetchAhead(partial(self._chunk_keys, engine.fingerprint), engine.prefetch)
        if encode and engine.unsupported is None:
            self.encoder = self._encoders(engine, self._resolver)
            self.encoder.start()

    def _encoders(self, engine: LocalEngine, resolver: MemoryResolver) -> Encoders:
        """One for each kind of chunk, each with a ledger, and so a lease, of its own; they share slots and a pace."""
        rungs, pace = rungs_of(self.policy), Pace(self.settings.reencode_rate)
        return Encoders(
            [
                BackgroundEncoder(
                    self.contexts, ChunkLedger(self._database), self.chunks, engine, rung, resolver.encode_salt,
                    concurrency=max(1, ENCODING_AT_ONCE // len(rungs)), reencode=pace,
                )
                for rung in rungs
            ]
        )  # fmt: skip

    def _chunk_keys(self, fingerprint: str, facts: Sequence[Wanted]) -> dict[str, str]:
        """Keys of the chunks that are wanted, by fact id; of facts that have them."""
        found = self.ledger.lookup_all([fact.fact_id for fact in facts], fingerprint, chunk_policies(self.policy))
        return {
            fact.fact_id: found[fact.fact_id][fact.policy].key
            for fact in facts
            if fact.policy in found.get(fact.fact_id, {})
        }

    @property
    def retriever(self) -> Retriever:
        """Embedder and index, opened on first use: loading an embedding model takes seconds."""
        with self._opening:
            if self._retriever is None:
                self._retriever = Retriever(
                    self.store, self._open_embedder(), self._open_index(), near_duplicate=self.settings.near_duplicate
                )
            return self._retriever

    def _open_embedder(self) -> Embedder:
        given = self._embedder
        if given is None or isinstance(given, str):
            return SentenceTransformerEmbedder(resolve_model(given or self.settings.embedder, home=self.settings.home))
        if is_embedder(given):
            return cast(Embedder, given)
        return CallableEmbedder(cast(Callable[[list[str]], Any], given))

    def _open_index(self) -> VectorIndex:
        given = self._index or self.settings.index
        return open_index(given) if isinstance(given, str) else given

    def _owner(self, ids: Mapping[str, Any]) -> Scope:
        """The scope that a call names by keywords.

        Raises:
            TypeError: a keyword is none of them.
            ScopeError: no owner, or a malformed id.
            StoreError: the memory is closed.
        """
        self._check_open()
        if unknown := set(ids) - SCOPE_IDS:
            raise TypeError(
                f"unexpected keyword {', '.join(sorted(unknown))}; scopes are user_id, agent_id, session_id, tenant_id."
            )
        return Scope.of(**{name: value for name, value in ids.items() if value is not None or name == "tenant_id"})

    @property
    def place(self) -> str:
        """Which database this is, as 32 hex digits: what is saved apart from its memory names it so."""
        return place_of(self.settings.database)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory is closed; what it holds is safe. Open it again with Memory(...).")

    def _notify(self) -> None:
        if self.encoder is not None:
            self.encoder.notify()

    def _scores_of(self, handle: str) -> Mapping[str, float]:
        """What the facts behind a handle were recalled with, by id; empty for a handle of another process."""
        with self._scores_lock:
            return self._scores.get(handle, {})

    def _look_for(self, keys: Sequence[str]) -> None:
        """Verify chunks that the engine could not load; those that are gone or damaged are encoded again."""
        if self.engine is None or self._closed:
            return
        bad = [key for key in keys if self.chunks.find(key, self.engine.fingerprint) is None]
        if bad:
            logger.warning("%d chunks are gone or damaged and will be encoded again.", len(bad))
            self.ledger.lost(bad)
            metrics.CHUNKS_LOST.inc(len(bad))
            purge(self.ledger, self.chunks)
            self._notify()

    def close(self) -> None:
        """Finish the encodings in flight and let the engine go; what waits is found again by the next memory.

        May be called twice. Every other call raises ``StoreError`` from then on; the engine is the caller's to close.
        """
        with self._opening:
            if self._closed:
                return
            self._closed = True
        if self._ahead is not None:
            self._ahead.close()
        if self.encoder is not None:
            self.encoder.stop()
        if self._retriever is not None:
            self._retriever.close()
        if self.engine is not None and self._resolver is not None and self.engine.resolver is self._resolver:
            self.engine.bind(None)
        self._database.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _warn_of_unknown_variables() -> None:
    """A misspelt INFERSCALE_SECRET would be replaced by a fresh secret without a word."""
    for name, meant in unknown_variables().items():
        if name not in _told:
            _told.add(name)
            logger.warning("%s is not a setting and is ignored%s.", name, f"; was {meant} meant?" if meant else "")
