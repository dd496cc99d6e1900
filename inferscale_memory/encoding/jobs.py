"""One fact through the engine: build the prompt, record the chunk, capture, confirm; retry and park what fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from inferscale_memory import metrics
from inferscale_memory.encoding.engine import ChunkFiles, EncodingEngine
from inferscale_memory.encoding.ledger import ChunkLedger, ChunkRecord, chunk_owner
from inferscale_memory.encoding.policies import ContextPolicy, ContextSource, build_request
from inferscale_memory.errors import EncodingError, EngineError, InvalidInputError, PromptError
from inferscale_memory.facts.models import Fact
from inferscale_memory.kv.keys import chunk_key
from inferscale_memory.serving.protocol import CaptureSpan

_log = logging.getLogger(__name__)
_REASON_CHARS = 500


class FactSource(ContextSource, Protocol):
    """Facts by id, what could stand before them, and the vectors that say so. ``contexts.MemoryContexts`` is one.

    The methods below ``get_many`` are called for policies only that are ``similar``.
    """

    def get_many(self, ids: Iterable[str]) -> dict[str, Fact]:
        """The facts that exist, by id."""
        ...

    def embed_some(self) -> bool:
        """Embed a part of the facts that have no vector yet; whether to call it again."""
        ...

    def embedded(self, fact_ids: Iterable[str]) -> dict[str, int]:
        """Of which of these facts there are vectors, and of which revisions."""
        ...

    def reached(self, fact_ids: Iterable[str], reach: Mapping[str, float]) -> set[str]:
        """Which facts of ``reach`` are at least as similar to one of ``fact_ids`` as is said there, and may see it."""
        ...

    def known_until(self) -> int:
        """Sequence number of the last change of the facts that ``nearest_facts`` knows."""
        ...


class Outcome(Enum):
    """How the job of one fact ended."""

    ENCODED = "encoded"
    RENEWED = "renewed"
    """Encoded again; the new chunk is served in the old one's place."""
    CONFIRMED = "confirmed"
    """It was called stale, but would be encoded just the same."""
    PARKED = "parked"
    NOTHING = "nothing"
    """The fact is gone or already encoded."""
    AGAIN = "again"
    """Something changed meanwhile; if the fact still waits, a later scan finds it."""


class _AttemptError(Exception):
    """This attempt failed and another one may succeed. The message is the reason."""


class _HopelessError(Exception):
    """No attempt can succeed: the fact does not fit, or has no tokens."""


@dataclass(frozen=True)
class Retry:
    """How often a failing fact is tried, and how long the pause between attempts may grow, in seconds."""

    attempts: int = 3
    first_pause: float = 0.25
    longest_pause: float = 10.0


class Encoder:
    """Encodes single facts. Everything that it writes is known to the ledger first."""

    def __init__(
        self, store: FactSource, ledger: ChunkLedger, files: ChunkFiles, engine: EncodingEngine, policy: ContextPolicy,
        salt: Callable[[Fact], str], retry: Retry, slots: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        self._store, self._ledger, self._files, self._engine = store, ledger, files, engine
        self._policy, self._salt, self._retry, self._slots = policy, salt, retry, slots

    async def run(self, fact_id: str, *, stale: bool = False) -> Outcome:
        """Encode one fact, trying again where that may help.

        Args:
            fact_id: of the fact.
            stale: it has a chunk, which is served until the new one is ready.

        Raises:
            EngineError: the engine cannot go on; the fact keeps waiting.
        """
        attempts = AsyncRetrying(
            stop=stop_after_attempt(self._retry.attempts),
            wait=wait_random_exponential(multiplier=self._retry.first_pause, max=self._retry.longest_pause),
            retry=retry_if_exception_type(_AttemptError),
            before_sleep=_count_retry,
            reraise=True,
        )
        try:
            # A pause between attempts holds no slot: failing facts do not slow the others down.
            async for attempt in attempts:
                with attempt:
                    last = attempt.retry_state.attempt_number >= self._retry.attempts
                    return await self._attempt(fact_id, stale=stale, last=last)
        except (_AttemptError, _HopelessError):
            metrics.ENCODE_PARKED.inc()
        return Outcome.PARKED

    async def _attempt(self, fact_id: str, *, stale: bool, last: bool) -> Outcome:
        async with self._slots:
            fact = self._store.get_many([fact_id]).get(fact_id)
            if fact is None:
                return Outcome.NOTHING
            try:
                return await self._encode(fact, stale)
            except (_HopelessError, _AttemptError) as error:
                self._note(fact, str(error), park=last or isinstance(error, _HopelessError))
                raise

    async def _encode(self, fact: Fact, stale: bool) -> Outcome:
        record, token_ids = self._laid_out(fact)
        key, end = record.key, len(token_ids)
        if stale and self._ledger.confirm(record):
            return Outcome.CONFIRMED
        if not self._ledger.begin(record):
            return Outcome.AGAIN
        await self._capture(key, token_ids, CaptureSpan(key, end - record.n_tokens, end), self._salt(fact))
        if not self._ledger.ready(key):
            self._throw_away(key)
            metrics.ENCODE_DISCARDED.inc()
            return Outcome.AGAIN
        metrics.ENCODED.inc()
        return Outcome.RENEWED if stale else Outcome.ENCODED

    def _laid_out(self, fact: Fact) -> tuple[ChunkRecord, tuple[int, ...]]:
        """What is to be encoded, and the prompt for it, which the fact's line ends."""
        policy, fingerprint = self._policy, self._engine.fingerprint
        # Before the choice: what becomes known meanwhile then counts as not known, and is looked at once more.
        known_until = self._store.known_until() if policy.similar else None
        without_vector = policy.similar and self._store.embedded([fact.id]).get(fact.id) != fact.revision
        try:
            items = policy.context(fact, self._store)
            request = build_request(self._engine.prompt, policy, fact, items, self._engine.max_model_len)
        except (EncodingError, InvalidInputError, PromptError) as error:
            raise _HopelessError(str(error)) from error
        key = chunk_key(
            tenant=fact.scope.tenant,
            owner=chunk_owner(fact.scope.principal, fact.id, fact.revision, policy.name),
            fingerprint=fingerprint,
            context_ids=request.context_ids,
            token_ids=request.fact_ids,
        )
        record = ChunkRecord(
            key, fact.id, fact.revision, fact.scope.principal, fingerprint, policy.name, len(request.fact_ids),
            request.kept, request.left_out, None if without_vector else policy.reach(items),
            None if without_vector else known_until, without_vector,
        )  # fmt: skip
        return record, request.token_ids

    async def _capture(self, key: str, token_ids: tuple[int, ...], span: CaptureSpan, salt: str) -> None:
        began = time.monotonic()
        try:
            result = await self._engine.capture(token_ids, [span], salt=salt)
        except EngineError as error:
            # An engine refuses a single prompt with a ValueError; any other cause means that the engine is gone, and
            # then the row stays pending: the engine's processes may still be writing the file.
            if not isinstance(error.__cause__, ValueError):
                raise
            self._throw_away(key)
            raise _AttemptError(str(error)) from error
        except Exception as error:
            # Whatever one prompt can do wrong costs that prompt only; the reason is kept with the parked fact.
            self._throw_away(key)
            raise _AttemptError(f"{type(error).__name__}: {error}") from error
        if key not in result.stored:
            self._throw_away(key)
            raise _AttemptError(result.failed.get(key, "the engine neither stored the chunk nor said why"))
        metrics.ENCODE_SECONDS.observe(time.monotonic() - began)

    def _throw_away(self, key: str) -> None:
        """Delete what an encode that came to nothing may have written, then every trace of it."""
        self._files.delete([key])
        self._ledger.discard(key)

    def _note(self, fact: Fact, reason: str, *, park: bool) -> None:
        fingerprint, policy = self._engine.fingerprint, self._policy.name
        self._ledger.failed(fact.id, fact.revision, fingerprint, policy, reason[:_REASON_CHARS], park=park)
        # The reason may quote the fact; it stands in the database only, where it is deleted with the fact.
        _log.warning("encoding fact %s failed, %s", fact.id, "it is parked" if park else "it is tried again")


def _count_retry(_: RetryCallState) -> None:
    metrics.ENCODE_RETRIES.inc()
