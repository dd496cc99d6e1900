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

    async def run(self, fact_id: str) -> Outcome:
        """Encode one fact, trying again where that may help.

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
                    return await self._attempt(fact_id, last=attempt.retry_state.attempt_number >= self._retry.attempts)
        except (_AttemptError, _HopelessError):
            metrics.ENCODE_PARKED.inc()
        return Outcome.PARKED

    async def _attempt(self, fact_id: str, *, last: bool) -> Outcome:
        async with self._slots:
            fact = self._store.get_many([fact_id]).get(fact_id)
            if fact is None:
                return Outcome.NOTHING
            try:
                return await self._encode(fact)
            except (_HopelessError, _AttemptError) as error:
                self._note(fact, str(error), park=last or isinstance(error, _HopelessError))
                raise

    async def _encode(self, fact: Fact) -> Outcome:
        try:
            items = self._policy.context(fact, self._store)
            request = build_request(self._engine.prompt, self._policy, fact, items, self._engine.max_model_len)
        except (EncodingError, InvalidInputError, PromptError) as error:
            raise _HopelessError(str(error)) from error
        owner = chunk_owner(fact.scope.principal, fact.id, fact.revision, self._policy.name)
        key = chunk_key(
            tenant=fact.scope.tenant, owner=owner, fingerprint=self._engine.fingerprint,
            context_ids=request.context_ids, token_ids=request.fact_ids,
        )  # fmt: skip
        record = ChunkRecord(
            key, fact.id, fact.revision, fact.scope.principal, self._engine.fingerprint, self._policy.name,
            len(request.fact_ids), request.kept,
        )  # fmt: skip
        if not self._ledger.begin(record):
            return Outcome.AGAIN
        await self._capture(key, request.token_ids, CaptureSpan(key, request.start, request.end), self._salt(fact))
        if not self._ledger.ready(key):
            self._throw_away(key)
            metrics.ENCODE_DISCARDED.inc()
            return Outcome.AGAIN
        metrics.ENCODED.inc()
        return Outcome.ENCODED

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
