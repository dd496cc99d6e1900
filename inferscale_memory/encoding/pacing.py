"""How often something may be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 0.2
"""Of the time, at most, that goes into what is paced."""


class Pace:
    """At most so many a second, evenly spread: what was not done in a quiet hour is not caught up with in a burst.

    Where one takes long, fewer than that: what is done beside users' questions must not take the engine from them.
    Threads may share one.

    Args:
        rate: per second; 0 is never.
        clock: seconds, never going back.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = 1.0 / rate if rate else float("inf")
        self._clock = clock
        self._next = 0.0 if rate else float("inf")
        self._lock = threading.Lock()

    @property
    def never(self) -> bool:
        """Whether nothing is ever done."""
        return self._pause == float("inf")

    def delay(self) -> float:
        """Seconds until the next one may be done; 0 if now."""
        return max(0.0, self._next - self._clock())

    def take(self) -> float:
        """One begins now; returns the time, for ``over``."""
        with self._lock:
            now = self._clock()
            self._next = max(self._next, now) + self._pause
            return now

    def over(self, began: float) -> None:
        """One that began then has ended: the next one waits until its share of the time is kept."""
        with self._lock:
            now = self._clock()
            self._next = max(self._next, now + (now - began) * (1 / SHARE - 1))

    def give_back(self) -> None:
        """One that was taken came to nothing: another may be done in its place."""
        with self._lock:
            self._next -= self._pause
