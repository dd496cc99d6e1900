"""Work with a time limit, in threads that never keep a program from ending.

``concurrent.futures`` and ``asyncio.to_thread`` wait for their threads when the program or the loop ends; a search that
hangs would hang that too.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from inferscale_memory.errors import InferScaleError

T = TypeVar("T")

IDLE_SECONDS = 10.0
MAX_WAITING = 1_000


class BusyError(InferScaleError):
    """All threads of a pool are busy and its queue is full: what they work for does not answer."""


class DaemonPool:
    """A few daemon threads, started when there is work and gone when there is none.

    Args:
        workers: most threads at a time.
        waiting: most pieces of work that wait for one.
    """

    def __init__(self, workers: int, waiting: int = MAX_WAITING) -> None:
        self._workers, self._waiting = workers, waiting
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._threads = self._idle = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do ``work`` as soon as a thread is free; cancelling the future takes it back if it has not begun.

        Raises:
            BusyError: too much is waiting already.
        """
        future: Future[T] = Future()
        with self._changed:
            if len(self._queue) >= self._waiting:
                raise BusyError(f"{self._workers} calls do not return and {self._waiting} more are waiting.")
            self._queue.append((future, work))
            if len(self._queue) > self._idle and self._threads < self._workers:
                self._threads += 1
                threading.Thread(target=self._work, name="inferscale-daemon", daemon=True).start()
            else:
                self._changed.notify()
        return future

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, work = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # whoever waits for the future gets it, whatever it is
                future.set_exception(error)
            del taken, future, work  # an idle thread keeps nobody's question

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._queue:
                self._idle += 1
                woken = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not woken and not self._queue:
                    self._threads -= 1
                    return None
            return self._queue.popleft()


def wait_for(future: Future[Any], seconds: float) -> None:
    """Wait until a future is done, at most ``seconds``; look at ``future.done()`` then."""
    wait([future], timeout=max(0.0, seconds))


async def await_for(future: Future[Any], seconds: float) -> None:
    """Async twin of ``wait_for``: the loop goes on, and cancelling the caller leaves the future alone."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    if future.done():
        return
    future.add_done_callback(tell)
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), max(0.0, seconds))
