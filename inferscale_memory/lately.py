"""What was asked for or used lately, so that it is not asked for again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FRESH_SECONDS = 60.0
CAPACITY = 65_536


class Lately(Generic[K]):
    """Remembers things for a minute, the newest 65,536 of them. Safe to share between threads.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: OrderedDict[K, float] = OrderedDict()  # oldest first

    def others(self, things: Iterable[K]) -> list[K]:
        """Those of ``things`` that were not noted within the last minute."""
        since = self._clock() - FRESH_SECONDS
        with self._lock:
            return [thing for thing in things if self._noted.get(thing, since) <= since]

    def note(self, things: Iterable[K]) -> None:
        """Remember these from now on for a minute."""
        now = self._clock()
        with self._lock:
            for thing in things:
                self._noted[thing] = now
                self._noted.move_to_end(thing)
            while len(self._noted) > CAPACITY:
                self._noted.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._noted.clear()
