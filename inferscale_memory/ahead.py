"""Having the engine fetch the chunks of recalled facts while the application still writes its prompt."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from inferscale_memory.errors import StoreError
from inferscale_memory.timeboxed import BusyError, DaemonPool

logger = logging.getLogger(__name__)

REMEMBERED_FACTS = 65_536
WAITING = 16


class FetchAhead:
    """Looks up the chunks of recalled facts in a thread of its own, and asks for them; a recall never waits for it.

    Facts that were asked for lately are not looked up again. All of it is a guess: what it is wrong about, or too slow
    for, the engine fetches when the question comes.

    Args:
        keys_of: chunk keys of those of these facts that are encoded.
        fetch: asks for chunks; returns at once.
    """

    def __init__(
        self, keys_of: Callable[[Sequence[str]], Iterable[str]], fetch: Callable[[Sequence[str]], None]
    ) -> None:
        self._keys_of, self._fetch = keys_of, fetch
        self._pool = DaemonPool(1, WAITING)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()

    def recalled(self, facts: Iterable[tuple[str, int]]) -> None:
        """These facts, as (id, revision), are about to be asked about."""
        with self._lock:
            new = [fact for fact in facts if fact not in self._known]
            self._known.update(dict.fromkeys(new))
            while len(self._known) > REMEMBERED_FACTS:
                self._known.popitem(last=False)
        if new:
            try:
                self._pool.submit(lambda: self._ask([fact_id for fact_id, _ in new]))
            except BusyError:
                logger.debug("%d facts are not fetched ahead: %d recalls wait already.", len(new), WAITING)

    def _ask(self, fact_ids: Sequence[str]) -> None:
        try:
            keys = list(self._keys_of(fact_ids))
        except StoreError as error:  # the memory may have been closed meanwhile
            logger.debug("%d facts are not fetched ahead: %s", len(fact_ids), error)
            return
        if keys:
            self._fetch(keys)
