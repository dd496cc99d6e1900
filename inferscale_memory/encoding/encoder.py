"""The background encoder: a thread that encodes every committed fact that has no chunk yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from inferscale_memory.encoding._loop import EncoderLoop
from inferscale_memory.encoding.engine import ChunkFiles, EncodingEngine
from inferscale_memory.encoding.jobs import FactSource, Retry
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.policies import ContextPolicy
from inferscale_memory.encoding.purge import purge
from inferscale_memory.encoding.records import ParkedFact
from inferscale_memory.errors import EncodingError, EngineError, FlushTimeoutError, InvalidInputError
from inferscale_memory.facts.models import Fact
from inferscale_memory.scope import Scope

__all__ = ["BackgroundEncoder", "EncoderStatus", "FlushReport", "Progress", "Retry", "purge"]

DEFAULT_REENCODE_RATE = 1.0
"""Facts a second that are encoded again in the background."""

Progress = Callable[[int, int], None]
"""Called with facts done and facts in all."""


@dataclass(frozen=True)
class FlushReport:
    """What a flush waited for.

    Attributes:
        encoded: how many facts it has seen waiting that are encoded now.
        parked: facts of the scope that are set aside, with their reasons; they are served by prefill.
    """

    encoded: int
    parked: tuple[ParkedFact, ...]


@dataclass(frozen=True)
class EncoderStatus:
    """State of the encoder.

    Attributes:
        running: it lives.
        paused: it sends no new requests.
        waiting: facts without a chunk that are not at work.
        in_flight: facts at work, stale ones included.
        encoded: facts encoded since the start, those encoded again included.
        parked: facts set aside after failing.
        reason: why it stopped by itself, or None.
        stale: facts that are served, and to be encoded again since they have new neighbours.
    """

    running: bool
    paused: bool
    waiting: int
    in_flight: int
    encoded: int
    parked: int
    reason: str | None
    stale: int = 0


class BackgroundEncoder:
    """Encodes facts in a daemon thread with an event loop of its own.

    The queue is derived from the database (see ``ledger``), so nothing is lost by a crash and ``notify`` is only a
    hint that makes it look sooner. With a positional policy there is nothing to encode beforehand and no thread.

    Args:
        store: the facts.
        ledger: of the same database.
        chunk_store: where the engine's workers write the chunks.
        engine: makes the chunks.
        policy: the context that facts are encoded behind.
        salt: of the encode request of a fact; never one that another user's request can have.
        concurrency: requests in the engine at once.
        retry: how a failing fact is tried again before it is parked.
        reencode: how often a fact is encoded again because it has new neighbours, while nobody waits in ``flush``.
    """

    def __init__(
        self, store: FactSource, ledger: ChunkLedger, chunk_store: ChunkFiles, engine: EncodingEngine,
        policy: ContextPolicy, salt: Callable[[Fact], str], *, concurrency: int = 8, retry: Retry | None = None,
        reencode: Pace | None = None,
    ) -> None:  # fmt: skip
        if concurrency < 1:
            raise InvalidInputError(f"concurrency is {concurrency}; at least one request must be in flight.")
        self._ledger, self._chunk_store, self._engine, self._policy = ledger, chunk_store, engine, policy
        self._changed = threading.Condition()
        self._pace = reencode or Pace(DEFAULT_REENCODE_RATE)
        self._loop = EncoderLoop(
            store, ledger, chunk_store, engine, policy, salt, concurrency, retry or Retry(), self._pace, self._announce
        )
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    # --- life ---

    def start(self) -> None:
        """Begin, or begin again after ``stop`` or after the engine died. Does nothing while it runs.

        Deletions that a crash interrupted are finished here.
        """
        with self._starting:
            if self.running:
                return
            if self._policy.positional:
                self._ledger.reset_pending()
                purge(self._ledger, self._chunk_store)
                return
            self._loop.reset()
            self._thread = threading.Thread(target=self._loop.run, name="inferscale-encoder", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Finish what is in flight, for at most ``timeout`` seconds, and end. What waits is found at the next start."""
        with self._starting:
            if self._thread is None:
                return
            self._loop.request_stop(timeout)
            self._thread.join(timeout + 5.0)
            self._thread = None
        self._announce()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def pause(self) -> None:
        """Send no new requests; those in flight are finished."""
        self._loop.set_paused(True)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._loop.set_paused(False)

    def notify(self) -> None:
        """New facts were committed, or chunks forgotten: look now."""
        self._loop.notify()

    # --- waiting ---

    def flush(
        self, timeout: float | None = None, scope: Scope | None = None, progress: Progress | None = None, *,
        given_up: threading.Event | None = None,
    ) -> FlushReport:  # fmt: skip
        """Wait until every fact of the scope is encoded or parked, and none of them is stale.

        So the contexts are then those of the whole memory, in whatever order it came. Stale facts of the scope are not
        held back by the pace meanwhile; where that is never, they are not waited for.

        Args:
            timeout: seconds; None waits for ever (while paused, until another thread resumes).
            scope: whose facts; None is everybody's.
            progress: called now and then from this thread.
            given_up: set by another thread when nobody waits for this call any more.

        Raises:
            FlushTimeoutError: facts were left after ``timeout``; they go on being encoded.
            EngineError: the engine died; what waits is encoded after a new start.
            EncodingError: the encoder is not running, or the call was given up.
        """
        if self._policy.positional:
            return FlushReport(0, ())
        deadline = None if timeout is None else time.monotonic() + timeout
        parked_before = len(self.parked(scope))
        with self._loop.hurry(scope):
            unannounced, left = self._left(scope)
            total = left
            # Until the start has compared ledger and files, a chunk may be called ready whose file is gone.
            while left or unannounced or (self.running and not self._loop.reconciled):
                self._check_alive(left or unannounced)
                if given_up is not None and given_up.is_set():
                    raise EncodingError(f"the flush was given up with {left} facts left; they go on being encoded.")
                self._await_change(left or unannounced, timeout, deadline)
                began = time.monotonic()
                unannounced, left = self._left(scope)
                total = max(total, left)
                if progress is not None:
                    progress(total - left, total)
                if left:
                    # Counting takes time in proportion to all facts; it must not take most of the database's.
                    time.sleep(min(1.0, 2 * (time.monotonic() - began)))
        parked = tuple(self.parked(scope))
        return FlushReport(total - max(0, len(parked) - parked_before), parked)

    def _await_change(self, left: int, timeout: float | None, deadline: float | None) -> None:
        pause = 0.25 if deadline is None else min(0.25, deadline - time.monotonic())
        if pause <= 0:
            hint = " The encoder is paused; call resume()." if self._loop.paused else ""
            raise FlushTimeoutError(
                f"{left} facts were still waiting to be encoded after {timeout:g} s. They are safe as text and go on "
                f"being encoded; flush again, or with a longer timeout.{hint}"
            )
        with self._changed:
            self._changed.wait(pause)

    def parked(self, scope: Scope | None = None) -> list[ParkedFact]:
        """Facts set aside after failing, with their reasons."""
        return self._ledger.parked(self._engine.fingerprint, self._policy.name, scope)

    def retry_parked(self, scope: Scope | None = None) -> int:
        """Try parked facts again; returns how many."""
        count = self._ledger.retry_parked(self._engine.fingerprint, self._policy.name, scope)
        self.notify()
        return count

    def status(self) -> EncoderStatus:
        """Counts the queue."""
        positional = self._policy.positional
        left = 0 if positional else self._unfinished(None)
        reason = self._loop.failure
        return EncoderStatus(
            running=self.running, paused=self._loop.paused, waiting=left - min(left, self._loop.in_flight),
            in_flight=self._loop.in_flight, encoded=self._loop.encoded, parked=0 if positional else len(self.parked()),
            reason=None if reason is None else str(reason), stale=0 if positional else self._stale(None),
        )  # fmt: skip

    def _unfinished(self, scope: Scope | None) -> int:
        return self._ledger.unfinished(self._engine.fingerprint, self._policy.name, scope)

    def _stale(self, scope: Scope | None) -> int:
        return self._ledger.count_stale(self._engine.fingerprint, self._policy.name, scope)

    def _left(self, scope: Scope | None) -> tuple[int, int]:
        """Facts whose neighbours may become stale yet, and facts to be encoded, for the first time or again."""
        unannounced = 0
        if self._policy.similar:
            # Counted first: what is announced before the other two are counted is stale by then.
            unannounced = self._ledger.count_unannounced(self._engine.fingerprint, self._policy.name, scope)
        left = self._unfinished(scope)
        return unannounced, left + (0 if self._pace.never else self._stale(scope))

    def _check_alive(self, left: int) -> None:
        failure = self._loop.failure
        if failure is not None:
            kind = EngineError if isinstance(failure, EngineError) else EncodingError
            raise kind(
                f"encoding has stopped with {left} facts left: {failure} They are safe as text and are encoded after "
                "the next start."
            ) from failure
        if not self.running:
            raise EncodingError(f"the encoder is not running and {left} facts wait; call start().")

    def _announce(self) -> None:
        with self._changed:
            self._changed.notify_all()
