"""Having the engine fetch the chunks of recalled facts while the application still writes its prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from inferscale_memory.daemons import BusyError, DaemonPool
from inferscale_memory.errors import StoreError
from inferscale_memory.lately import Lately

logger = logging.getLogger(__name__)

WAITING = 16


class Wanted(NamedTuple):
    """A fact that was recalled, and by its policy which of its chunks its place in the prompt asks for."""

    fact_id: str
    revision: int
    policy: str


class FetchAhead:
    """Looks up the chunks of recalled facts in a thread of its own, and asks for them; a recall never waits for it.

    Facts that were asked for within the last minute are not looked up again. All of it is a guess: what it is wrong
    about, or too slow for, the engine fetches when the question comes.

    Args:
        keys_of: of these facts, the chunk key of each that is encoded.
        fetch: asks for chunks; returns at once.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        keys_of: Callable[[Sequence[Wanted]], Mapping[str, str]],
        fetch: Callable[[Sequence[str]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys_of, self._fetch = keys_of, fetch
        self._pool = DaemonPool(1, WAITING)
        self._asked = Lately[Wanted](clock)
        self._closed = False

    def recalled(self, facts: Iterable[Wanted]) -> None:
        """These facts are about to be asked about."""
        new = self._asked.others(facts)
        if new:
            try:
                self._pool.submit(lambda: self._ask(new))
            except BusyError:
                logger.debug("%d facts are not fetched ahead: %d recalls wait already.", len(new), WAITING)

    def close(self) -> None:
        """Look nothing up any more."""
        self._closed = True

    def _ask(self, facts: Sequence[Wanted]) -> None:
        if self._closed:
            return
        try:
            keys = self._keys_of(facts)
        except StoreError as error:  # the memory may have been closed meanwhile
            logger.debug("%d facts are not fetched ahead: %s", len(facts), error)
            return
        self._asked.note(fact for fact in facts if fact.fact_id in keys)
        if keys:
            self._fetch(list(keys.values()))
