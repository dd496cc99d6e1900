"""Tells older facts' chunks of new facts, for policies that depend on what is saved later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from inferscale_memory.encoding.jobs import FactSource
from inferscale_memory.encoding.ledger import ChunkLedger

_log = logging.getLogger(__name__)

PAGE = 256
"""Facts announced at a time."""
LOOK_AGAIN = 10.0
"""Seconds between looks at facts that have no vector."""


class Announcer:
    """Embeds new facts, then announces them (see ``ledger.StaleChunks``), a page per ``step``.

    Nothing is lost by a crash: what is left to do is derived from the database.

    Args:
        source: the facts and their vectors.
        ledger: the books.
        fingerprint: of the model whose chunks are told.
        policy: name of theirs.
        clock: seconds, never going back.
    """

    def __init__(
        self, source: FactSource, ledger: ChunkLedger, fingerprint: str, policy: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._source, self._ledger, self._fingerprint, self._policy = source, ledger, fingerprint, policy
        self._clock = clock
        self._look_again = 0.0

    def step(self) -> bool:
        """Do a page of the work; whether there may be more. Takes as long as embedding a page of texts.

        Facts that cannot be embedded are announced without a vector, so that nobody waits for them, and again later.

        Raises:
            StoreError: the database cannot be used.
        """
        if self._source.embed_some():
            return True
        new = self._ledger.unannounced(self._fingerprint, self._policy, PAGE)
        if new:
            missing = len(new) - self._announce(new)
            if missing:
                _log.warning(
                    "%d facts could not be embedded; they are encoded behind preceding facts, and again once they have "
                    "a vector",
                    missing,
                )
            return True
        if self._clock() >= self._look_again:
            self._look_again = self._clock() + LOOK_AGAIN
            late = self._ledger.without_vector(self._fingerprint, self._policy)
            self._announce(list(self._source.embedded(late)))
        return False

    def _announce(self, fact_ids: Sequence[str]) -> int:
        """Announce facts; returns how many of them have a vector."""
        if not fact_ids:
            return 0
        embedded = self._source.embedded(fact_ids)
        marked = self._ledger.announce(self._fingerprint, self._policy, fact_ids, embedded, self._source.reached)
        if marked:
            _log.debug("%d facts have new neighbours and are encoded again", marked)
        return len(embedded)
