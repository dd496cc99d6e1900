"""The event loop of the background encoder: scan, dispatch, tidy up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from inferscale_memory import metrics
from inferscale_memory.encoding.announcer import Announcer
from inferscale_memory.encoding.engine import ChunkFiles, EncodingEngine
from inferscale_memory.encoding.jobs import Encoder, FactSource, Outcome, Retry
from inferscale_memory.encoding.leases import LEASE
from inferscale_memory.encoding.ledger import ChunkLedger
from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.policies import ContextPolicy
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import EngineError, StoreError
from inferscale_memory.facts.models import Fact
from inferscale_memory.scope import Scope

_log = logging.getLogger(__name__)

TICK = LEASE.total_seconds() / 4
"""Seconds between renewals of the lease, and between looks at what other processes left."""
_SCAN = 1000
"""Facts per scan: a scan costs time in proportion to all facts."""
_AGAIN_PAUSE = 0.1
_TROUBLE_PAUSE = 1.0
_RENEWED_PAUSE = 1.0


class EncoderLoop:
    """Runs in the encoder's thread. Methods above the line are called from other threads."""

    def __init__(
        self, store: FactSource, ledger: ChunkLedger, files: ChunkFiles, engine: EncodingEngine, policy: ContextPolicy,
        salt: Callable[[Fact], str], concurrency: int, retry: Retry, pace: Pace, announce: Callable[[], None],
    ) -> None:  # fmt: skip
        self._store, self._ledger, self._files, self._engine, self._policy = store, ledger, files, engine, policy
        self._salt, self._concurrency, self._retry, self._pace, self._announce = (
            salt,
            concurrency,
            retry,
            pace,
            announce,
        )
        self._announcer = Announcer(store, ledger, engine.fingerprint, policy.name) if policy.similar else None
        self._hurries: dict[object, Scope | None] = {}
        self.paused = False
        self.encoded = 0
        self.failure: Exception | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the previous run; only while the thread is not running."""
        self.failure = None
        self._stop_within: float | None = None
        self._tasks: dict[asyncio.Task[Outcome], str] = {}
        self._backlog: deque[str] = deque()
        self._next_scan = self._next_tick = self._next_stale = 0.0
        self._strays = False
        self.reconciled = False

    @property
    def in_flight(self) -> int:
        """Facts being encoded, those between two attempts included."""
        return len(self._tasks)

    def notify(self) -> None:
        """Scan now."""
        self._next_scan = 0.0
        self._wake_up()

    def set_paused(self, paused: bool) -> None:
        """Stop or go on dispatching."""
        self.paused = paused
        self._wake_up()

    def request_stop(self, within: float) -> None:
        """End after what is in flight, or after ``within`` seconds."""
        self._stop_within = within
        self._wake_up()

    @contextlib.contextmanager
    def hurry(self, scope: Scope | None) -> Iterator[None]:
        """Meanwhile stale chunks of the scope (None: of everybody) are encoded again as fast as may be."""
        ticket = object()
        self._hurries = {**self._hurries, ticket: scope}  # the other thread may be reading the old one
        self.notify()
        try:
            yield
        finally:
            self._hurries = {key: value for key, value in self._hurries.items() if key is not ticket}

    def _wake_up(self) -> None:
        loop = self._event_loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(lambda: self._wake.set())

    # --- in the encoder's thread ---

    def run(self) -> None:
        """Body of the thread."""
        try:
            asyncio.run(self._serve())
        except Exception as error:
            # Whatever it is, waiting callers must be told instead of hanging.
            self.failure = error
            if not isinstance(error, EngineError):
                _log.exception("the encoder stopped")
        finally:
            self._event_loop = None
            self._announce()

    async def _serve(self) -> None:
        self._event_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._encoder = Encoder(
            self._store, self._ledger, self._files, self._engine, self._policy, self._salt, self._retry,
            asyncio.Semaphore(self._concurrency),
        )  # fmt: skip
        while self._stop_within is None:
            self._wake.clear()
            try:
                if not self.reconciled:
                    self._ledger.reset_pending(own=True)
                    self._reconcile()
                    self.reconciled = True
                self._tick()
                await self._announce_new()
                self._dispatch()
            except StoreError as error:
                _log.warning("the encoder cannot use the store, it tries again: %s", error)
                self._next_scan = self._next_tick = time.monotonic() + _TROUBLE_PAUSE
            await self._wait()
            await self._collect()
        await self._finish(self._stop_within)

    def _reconcile(self) -> None:
        """Chunks that the ledger calls ready but whose files are gone are made again."""
        known = self._ledger.ready_keys(self._engine.fingerprint, self._policy.name)
        lost = [key for key in known if not self._files.exists(key)]
        if lost:
            _log.warning("%d chunk files are gone; their facts are encoded again", len(lost))
            metrics.CHUNKS_LOST.inc(len(lost))
            self._ledger.lost(lost)

    def _tick(self) -> None:
        """Renew the lease, take over from dead processes, delete what is to be deleted, look for new facts."""
        if self._strays and not self._tasks:
            self._ledger.reset_pending(own=True)
            self._strays, self._next_tick = False, 0.0
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._ledger.heartbeat()
        self._ledger.reset_pending()
        self._next_tick = now + TICK
        self._next_scan = 0.0
        try:
            purge(self._ledger, self._files)
        except StoreError as error:
            # A folder that cannot be written must not keep facts from being encoded once it can; the tombstones stay.
            _log.error("deleted facts' chunk files are still on disk, tried again in %g s: %s", TICK, error)

    async def _announce_new(self) -> None:
        """Before facts are looked for: all new ones get their vectors, so that they see each other as neighbours.

        A page at a time in another thread, for embedding takes long; meanwhile what is in flight goes on.
        """
        if self._announcer is None or self._backlog or time.monotonic() < self._next_scan:
            return
        while self._stop_within is None and await asyncio.to_thread(self._announcer.step):
            self._tick()
            await self._collect()

    def _dispatch(self) -> None:
        if self.paused:
            return
        if self._room > 0 and not self._backlog and time.monotonic() >= self._next_scan:
            self._next_scan, self._next_stale = float("inf"), 0.0
            at_work = set(self._tasks.values())
            found = self._ledger.waiting(self._engine.fingerprint, self._policy.name, _SCAN + len(at_work))
            self._backlog.extend(fact_id for fact_id in found if fact_id not in at_work)
            metrics.ENCODE_WAITING.set(len(found))
            if len(found) >= _SCAN:
                self._next_scan = 0.0
        while self._backlog and self._room > 0:
            self._begin(self._backlog.popleft())
        if not self._backlog and time.monotonic() >= self._next_stale:
            self._dispatch_stale()

    def _dispatch_stale(self) -> None:
        """Facts that are served get their turn when no fact waits: those hurried for at once, the others at their pace.

        When to look again is said by the pace, by a job's end and by the next scan.
        """
        self._next_stale = float("inf")
        if self._pace.never:
            return
        for scope in {*self._hurries.values()}:
            for fact_id in self._stale(self._room, scope):
                self._begin(fact_id, stale=True)
        while self._room > 0 and (found := self._stale(1, None)):
            if (delay := self._pace.delay()) > 0:
                self._next_stale = time.monotonic() + delay
                return
            began = self._pace.take()
            task = self._begin(found[0], stale=True)
            task.add_done_callback(partial(self._paced, began))

    def _paced(self, began: float, _: asyncio.Task[Outcome]) -> None:
        self._pace.over(began)

    def _stale(self, limit: int, scope: Scope | None) -> list[str]:
        """At most ``limit`` facts that are to be encoded again and are not at work here."""
        if limit <= 0:
            return []
        at_work = set(self._tasks.values())
        fingerprint, policy = self._engine.fingerprint, self._policy.name
        found = self._ledger.stale(fingerprint, policy, limit + len(at_work), scope)
        return [fact_id for fact_id in found if fact_id not in at_work][:limit]

    @property
    def _room(self) -> int:
        return 4 * self._concurrency - len(self._tasks)

    def _begin(self, fact_id: str, *, stale: bool = False) -> asyncio.Task[Outcome]:
        task = asyncio.create_task(self._encoder.run(fact_id, stale=stale))
        self._tasks[task] = fact_id
        return task

    async def _wait(self) -> None:
        # A scan that cannot be made now must not be waited for, or the loop would spin until a task is done.
        ready = self._room > 0 and not self._backlog and not self.paused
        due = min([self._next_tick, *([self._next_scan, self._next_stale] if ready else [])])
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait(
                {wake, *self._tasks}, timeout=max(0.0, due - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            wake.cancel()

    async def _collect(self) -> None:
        """Take in finished jobs.

        Raises:
            EngineError: the engine died.
        """
        done = [task for task in self._tasks if task.done()]
        for task in done:
            del self._tasks[task]
            error = task.exception()
            if isinstance(error, EngineError):
                await self._cancel_all()
                raise error
            if error is not None:
                _log.warning("an encode job failed, it is done again: %s", type(error).__name__, exc_info=error)
                self._strays = True
                self._next_scan = time.monotonic() + _TROUBLE_PAUSE
            elif task.result() is Outcome.ENCODED:
                self.encoded += 1
            elif task.result() is Outcome.RENEWED:
                self.encoded += 1
                # Prompts laid out before still name the old chunk's file; it is deleted, with others, a little later.
                self._next_tick = min(self._next_tick, time.monotonic() + _RENEWED_PAUSE)
            elif task.result() is Outcome.CONFIRMED:
                self._pace.give_back()
            elif task.result() is Outcome.AGAIN:
                # Perhaps a deleted chunk of the same key has to be purged first.
                self._next_tick = self._next_scan = time.monotonic() + _AGAIN_PAUSE
        if done:
            self._next_stale = 0.0
            self._announce()

    async def _finish(self, within: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
            with contextlib.suppress(EngineError):  # an engine that dies while everything ends is nobody's concern
                await self._collect()
        if self._tasks:
            await self._cancel_all()
            self._ledger.abandon()
            return
        with contextlib.suppress(StoreError):  # the lease then ends by itself
            self._ledger.reset_pending(own=True)
            self._ledger.release()

    async def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
