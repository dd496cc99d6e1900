"""``Memory``: facts in, handles out."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from inferscale_memory import metrics
from inferscale_memory.async_memory import AsyncMemory
from inferscale_memory.config import Settings, load_settings
from inferscale_memory.db import open_database
from inferscale_memory.encoding.encoder import BackgroundEncoder, EncoderStatus, FlushReport, Progress
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.encoding.policies import ContextPolicy, parse_policy
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import ConfigError, FactNotFoundError, InvalidInputError
from inferscale_memory.facts import AddResult, Fact, FactExtractor, FactStore, Page, Revision, coerce_items
from inferscale_memory.handle import ExplainedFact, Explanation, Handle
from inferscale_memory.handles import HandleBook, SecretRing
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.migrations import upgrade
from inferscale_memory.models import resolve_model
from inferscale_memory.resolver import EngineSide, MemoryResolver
from inferscale_memory.retrieval import (
    CallableEmbedder,
    Embedder,
    Retriever,
    ScoredFact,
    SentenceTransformerEmbedder,
    VectorIndex,
    open_index,
)
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.facts import Content
    from inferscale_memory.serving.engine import LocalEngine

logger = logging.getLogger(__name__)

MAX_K = 10_000
REMEMBERED_SCORES = 1_000


class Memory(AsyncMemory):
    """Remembers facts, finds them again, and names them by KV handles.

    Without an engine everything works but encoding: facts wait as text and are encoded when an engine comes. Every
    method takes the scope as keywords: ``user_id``, ``agent_id``, ``session_id`` (at least one) and ``tenant_id``.
    Async twins have an ``a`` before their name. Safe to use from several threads; processes may share a home.

    Args:
        engine: encodes facts and resolves handles; its home is the memory's.
        home: folder of the memory; default from the settings (``INFERSCALE_HOME``).
        database_url: SQLAlchemy URL of the facts; default SQLite in the home.
        embedder: an ``Embedder``, a callable ``list[str] -> array``, or a model name; default all-MiniLM-L6-v2.
        index: a ``VectorIndex`` or ``"auto"``, ``"torch"``, ``"faiss"``, ``"numpy"``.
        policy: what facts are encoded behind, such as ``"preceding:5:fact"``; default from the settings.
        secret: signs handles and salts; default the file ``secret`` of the home, made on first use.
        extractor: finds facts in chat messages; default each message as it stands.
        encode: ``False`` starts no background encoder (another process has one).

    Raises:
        ConfigError: the settings contradict each other.
        StoreError: the database or the KV folder cannot be used.
    """

    def __init__(
        self,
        engine: LocalEngine | None = None,
        *,
        home: str | Path | None = None,
        database_url: str | None = None,
        embedder: Embedder | Callable[[Sequence[str]], Any] | str | None = None,
        index: VectorIndex | str | None = None,
        policy: str | ContextPolicy | None = None,
        secret: bytes | None = None,
        extractor: FactExtractor | None = None,
        encode: bool = True,
    ) -> None:
        if home is None and engine is not None:
            home = engine.settings.home
        self.settings: Settings = load_settings(home, database_url=database_url)
        if engine is not None and engine.settings.kv_folder != self.settings.kv_folder:
            raise ConfigError(
                f"the engine keeps its KV in {engine.settings.kv_folder}, this memory in {self.settings.kv_folder}: "
                "give both the same home, or leave the memory's out."
            )
        self.settings.memory_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.policy = parse_policy(policy or self.settings.policy)
        self._database = open_database(self.settings.database)
        upgrade(self._database)
        self.store = FactStore(self._database)
        self.ledger = ChunkLedger(self._database)
        self.chunks = ChunkStore(self.settings.kv_folder, world=_world(engine))
        self._secrets = SecretRing(secret) if secret is not None else SecretRing.load(self.settings.memory_folder)
        self.handles = HandleBook(self._database, self._secrets, ttl=timedelta(seconds=self.settings.handle_ttl))
        self._extractor = extractor
        self._embedder, self._index = embedder, index
        self._retriever: Retriever | None = None
        self._opening = threading.Lock()
        self._scores: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._closed = False
        self.engine: LocalEngine | None = None
        self.encoder: BackgroundEncoder | None = None
        self._resolver: MemoryResolver | None = None
        if engine is not None:
            self._bind(engine, encode)

    def _bind(self, engine: LocalEngine, encode: bool) -> None:
        self.engine = engine
        side = EngineSide(engine.fingerprint, engine.prompt)
        self._resolver = MemoryResolver(
            self.store, self.ledger, self.handles, self._secrets, self.policy, side, self._look_for
        )
        engine.bind(self._resolver)
        if encode and engine.unsupported is None:
            self.encoder = BackgroundEncoder(
                self.store, self.ledger, self.chunks, engine, self.policy, self._resolver.encode_salt
            )
            self.encoder.start()

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
        if hasattr(given, "embed"):
            return given
        return CallableEmbedder(given)

    def _open_index(self) -> VectorIndex:
        given = self._index or self.settings.index
        return open_index(given) if isinstance(given, str) else given

    # -- saving --------------------------------------------------------------------------------------------------------

    def add(
        self,
        items: Content,
        *,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **scope: Any,
    ) -> AddResult:
        """Remember a text, a list of texts, or chat messages; returns once the text is durable.

        Good items are kept, bad ones are named in ``errors``. What the scope knows already is not saved twice.

        Args:
            items: texts are facts as they stand; of messages each becomes a turn and a fact with its speaker.
            metadata: kept with every fact; it cannot change whose they are.
            idempotency_key: names this call, so that a retry saves nothing new.
            scope: ``user_id``, ``agent_id``, ``session_id``, ``tenant_id``.

        Raises:
            ScopeError: no owner, or a blank one.
            InvalidInputError: the call itself is wrong.
            StoreError: the database cannot be written.
        """
        owner = _scope(scope)
        coerced = coerce_items(
            items, extractor=self._extractor, metadata=metadata, max_chars=self.store.max_fact_chars
        )
        result = self.store.add(coerced.facts, owner, turns=coerced.turns, idempotency_key=idempotency_key)
        self._notify()
        return result

    def update(
        self, fact_id: str, *, text: str | None = None, metadata: Mapping[str, Any] | None = None, **scope: Any
    ) -> Fact:
        """Change a fact; the old text stays in its history. Handles that name it resolve to the new one.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        owner = _scope(scope)
        with self.store.transaction() as tx:
            before = self.store.get(fact_id, owner, tx=tx)
            fact = self.store.update(fact_id, owner, text=text, metadata=metadata, tx=tx)
            changed = before is not None and fact.revision != before.revision
            if changed:
                self.ledger.forget([fact.id], tx=tx)
        if changed:
            self._after_forgetting([fact.id])
        return fact

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def delete(self, fact_id: str, **scope: Any) -> Fact:
        """Remove a fact: text, history, vector, KV on every tier; facts encoded behind it are encoded again.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        owner = _scope(scope)
        with self.store.transaction() as tx:
            fact = self.store.delete(fact_id, owner, tx=tx)
            self.ledger.forget([fact.id], fact.turn_ids, tx=tx)
            self.handles.forget_facts([fact.id], tx, scope=owner)
        self._after_forgetting([fact.id])
        return fact

    def delete_all(self, **scope: Any) -> int:
        """Remove every fact and turn of the scope; returns how many facts."""
        owner = _scope(scope)
        with self.store.transaction() as tx:
            facts = self.store.delete_all(owner, tx=tx)
            turns = sorted({turn for fact in facts for turn in fact.turn_ids})
            self.ledger.forget([fact.id for fact in facts], turns, tx=tx)
            self.handles.forget_facts([fact.id for fact in facts], tx, scope=owner)
        self._after_forgetting([fact.id for fact in facts])
        return len(facts)

    def _after_forgetting(self, fact_ids: Sequence[str]) -> None:
        # The text is gone and the epoch has moved: nothing of this can be served any more. What follows erases.
        self.store.scrub()
        if self._retriever is not None:
            self._retriever.forget(fact_ids)
        if self._resolver is not None:
            self._resolver.forget(fact_ids)
        purge(self.ledger, self.chunks)
        if self.engine is not None:
            self.engine.follow_deletions()
        self._notify()

    def _notify(self) -> None:
        if self.encoder is not None:
            self.encoder.notify()

    # -- finding -------------------------------------------------------------------------------------------------------

    def search(self, query: str, k: int | None = None, *, threshold: float | None = None, **scope: Any) -> list[ScoredFact]:
        """Find the ``k`` facts that answer a question, best first; ``k`` come if ``k`` exist.

        Raises:
            InvalidInputError: the query is blank, or ``k`` is not 1 to 10,000.
            EmbeddingError: the embedder failed.
        """
        wanted = self.settings.k if k is None else k
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= MAX_K:
            raise InvalidInputError(f"k is {wanted!r}; wanted the number of facts, 1 to {MAX_K:,}.")
        with metrics.SEARCH_SECONDS.time():
            return self.retriever.search(query, _scope(scope), wanted, threshold=threshold)

    def recall(
        self, query: str, k: int | None = None, refresh: int | None = None, *, threshold: float | None = None, **scope: Any
    ) -> Handle:
        """Find facts and name them by a handle, to be put into a system message.

        Args:
            query: the question.
            k: how many facts, default from the settings (10).
            refresh: how many of the best-ranked are prefilled as text behind the injected ones; ``refresh=k`` is plain
                prompt injection, with no token injected.
            threshold: leave out facts of a lower cosine.
            scope: ``user_id``, ``agent_id``, ``session_id``, ``tenant_id``.
        """
        again = self.settings.refresh if refresh is None else refresh
        if not isinstance(again, int) or isinstance(again, bool) or again < 0:
            raise InvalidInputError(f"refresh is {again!r}; wanted a number of facts, 0 to k.")
        with metrics.RECALL_SECONDS.time():
            found = self.search(query, k, threshold=threshold, **scope)
            placed = [(scored.fact.id, scored.fact.revision) for scored in reversed(found)]
            token = self.handles.mint(_scope(scope), placed, min(again, len(placed)))
        self._scores[token] = {scored.fact.id: scored.score for scored in found}
        while len(self._scores) > REMEMBERED_SCORES:
            self._scores.popitem(last=False)
        return Handle(token, found)

    def explain(self, handle: str, **scope: Any) -> Explanation:
        """What a handle stands for: facts, scores, sources, and what of it is encoded and on disk.

        Raises:
            HandleError: it does not open (in this scope, if one is given).
        """
        record = self.handles.open(str(handle), _scope(scope) if scope else None)
        found = self.store.get_many(fact_id for fact_id, _ in record.facts)
        refs = {}
        if self.engine is not None:
            refs = self.ledger.lookup(list(found), self.engine.fingerprint, self.policy.name)
        scores = self._scores.get(str(handle), {})
        first_refreshed = len(record.facts) - record.refresh
        facts = tuple(
            ExplainedFact(
                fact=found[fact_id],
                score=scores.get(fact_id),
                encoded=fact_id in refs,
                resident=fact_id in refs and self.chunks.exists(refs[fact_id].key),
                refreshed=at >= first_refreshed,
            )
            for at, (fact_id, _) in enumerate(record.facts)
            if fact_id in found
        )
        return Explanation(record.scope, record.expires_at, record.refresh, facts, len(record.facts) - len(facts))

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, fact_id: str, **scope: Any) -> Fact:
        """One fact.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        owner = _scope(scope)
        fact = self.store.get(fact_id, owner)
        if fact is None:
            raise FactNotFoundError(f"no fact {fact_id!r} for {owner}.")
        return fact

    def list(self, *, limit: int = 100, cursor: str | None = None, **scope: Any) -> Page:
        """Facts of the scope, oldest first, a page at a time."""
        return self.store.list(_scope(scope), limit=limit, cursor=cursor)

    def history(self, fact_id: str, **scope: Any) -> Sequence[Revision]:
        """What became of a fact, oldest first.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        return self.store.history(fact_id, _scope(scope))

    # -- encoding ------------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None, *, progress: Progress | None = None, **scope: Any) -> FlushReport:
        """Wait until facts are encoded; of one scope, or without one of everybody.

        Returns at once where there is no encoder (no engine, or a model that cannot be injected).

        Raises:
            FlushTimeoutError: some were left after ``timeout`` seconds.
            EngineError: the engine died.
        """
        if self.encoder is None:
            return FlushReport(0, ())
        return self.encoder.flush(timeout, _scope(scope) if scope else None, progress)

    def status(self) -> EncoderStatus | None:
        """State of the background encoder, ``None`` where there is none."""
        return None if self.encoder is None else self.encoder.status()

    def _look_for(self, keys: Sequence[str]) -> None:
        """Verify chunks that the engine could not load; those that are gone or damaged are encoded again."""
        if self.engine is None:
            return
        bad = [key for key in keys if self.chunks.find(key, self.engine.fingerprint) is None]
        if bad:
            metrics.CHUNKS_LOST.inc(len(bad))
            logger.warning("%d chunks are gone or damaged and will be encoded again.", len(bad))
            self.ledger.lost(bad)
            purge(self.ledger, self.chunks)
            self._notify()

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the encodings in flight and let the engine go; what waits is found again by the next memory."""
        if self._closed:
            return
        self._closed = True
        if self.encoder is not None:
            self.encoder.stop()
        if self.engine is not None and self.engine.resolver is self._resolver:
            self.engine.bind(None)
        self._database.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scope(fields: Mapping[str, Any]) -> Scope:
    unknown = set(fields) - {"user_id", "agent_id", "session_id", "tenant_id"}
    if unknown:
        raise TypeError(f"unexpected keyword {', '.join(sorted(unknown))}; scopes are user_id, agent_id, session_id, tenant_id.")
    return Scope.of(**{name: value for name, value in fields.items() if value is not None or name == "tenant_id"})


def _world(engine: LocalEngine | None) -> int:
    return 1 if engine is None else engine.world
