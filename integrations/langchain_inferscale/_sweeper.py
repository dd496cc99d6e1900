"""A thread that erases a store's expired items now and then."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from inferscale_memory.errors import InferScaleError, InvalidInputError
from inferscale_memory.items.store import ItemStore

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps a store. It ends with its store: it keeps none alive, and stops once the store's memory is closed."""

    def __init__(self, items: ItemStore) -> None:
        self._items = weakref.ref(items)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._running: Future[None] | None = None

    def start(self, minutes: float) -> Future[None]:
        """Sweep every so many minutes; the one that runs already is returned.

        Raises:
            InvalidInputError: ``minutes`` is not a positive number.
        """
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < math.inf:
            raise InvalidInputError(f"the sweep interval is {minutes!r}; want minutes, more than 0.")
        with self._lock:
            if self._running is not None and not self._running.done():
                return self._running
            self._stopped = stopped = threading.Event()
            running: Future[None] = Future()
            self._running = running
            running.add_done_callback(lambda _: stopped.set())
            thread = threading.Thread(
                target=_sweep_until, args=(self._items, stopped, minutes * 60, running), name="ttl-sweeper", daemon=True
            )
            thread.start()
            return running

    def stop(self, timeout: float | None = None) -> bool:
        """Stop it and wait at most ``timeout`` seconds, None for ever; whether it is over."""
        with self._lock:
            self._stopped.set()
            running = self._running
        if running is None:
            return True
        over = threading.Event()
        running.add_done_callback(lambda _: over.set())
        return over.wait(timeout)


def _sweep_until(
    items: weakref.ref[ItemStore], stopped: threading.Event, seconds: float, running: Future[None]
) -> None:
    try:
        while not stopped.wait(seconds):
            store = items()
            if store is None or store.memory.closed:
                break
            try:
                store.sweep()
            except InferScaleError as error:  # a full disk, say: it may be over by the next time
                _log.warning("expired items are not yet erased: %s", error)
            del store
    finally:
        with suppress(InvalidStateError):  # it was cancelled
            running.set_result(None)
