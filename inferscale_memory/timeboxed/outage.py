"""An outage of a memory, told of once."""

from __future__ import annotations

import logging
import threading

from inferscale_memory import metrics
from inferscale_memory.handle import Handle
from inferscale_memory.timeboxed.recalls import Recall

logger = logging.getLogger(__name__)


class Outage:
    """Counts failed recalls; warns of the first, and says when it is over. Safe to use from several threads.

    Args:
        name: whose memory does not answer, for the warning.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lasts = False
        self._lock = threading.Lock()

    def failed(self, reason: str, why: str) -> None:
        """A recall has failed."""
        metrics.AGENT_MEMORY_FAILURES.labels("recall", reason).inc()
        with self._lock:
            told, self._lasts = self._lasts, True
        if not told:
            logger.warning("%s: memory does not answer, and the application goes on without: %s", self._name, why)

    def outcome(self, recall: Recall, begun: bool, timeout: float) -> Handle | None:
        """The handle of a search, if it has found facts by now.

        Args:
            recall: the search, waited for as long as it may be.
            begun: whether the caller began it: that one call tells how it ended.
            timeout: seconds that it was given, for the warning.
        """
        if not recall.found.done():
            if begun:
                self.failed("timeout", f"a search took longer than {timeout} s.")
            return None
        error = recall.found.exception()
        if error is not None:
            if begun:
                self.failed("error", f"{type(error).__name__}: {error}")
            return None
        if begun:
            self.worked()
        handle = recall.found.result()
        return handle if handle.facts else None

    def worked(self) -> None:
        """A recall has worked."""
        with self._lock:
            lasted, self._lasts = self._lasts, False
        if lasted:
            logger.info("%s: memory answers again.", self._name)
