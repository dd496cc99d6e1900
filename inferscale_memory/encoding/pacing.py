"""How often something may be done."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """At most so many a second, evenly spread: what was not done in a quiet hour is not caught up with in a burst.

    Args:
        rate: per second; 0 is never.
        clock: seconds, never going back.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = 1.0 / rate if rate else float("inf")
        self._clock = clock
        self._next = 0.0 if rate else float("inf")

    @property
    def never(self) -> bool:
        """Whether nothing is ever done."""
        return self._pause == float("inf")

    def delay(self) -> float:
        """Seconds until the next one may be done; 0 if now."""
        return max(0.0, self._next - self._clock())

    def take(self) -> None:
        """One is done now."""
        self._next = max(self._next, self._clock()) + self._pause

    def give_back(self) -> None:
        """One that was taken came to nothing: another may be done in its place."""
        self._next -= self._pause
