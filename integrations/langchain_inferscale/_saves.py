"""Saving a finished turn: in the background if need be, and never lost without a word."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from inferscale_memory import metrics
from inferscale_memory.daemons import BusyError, DaemonPool
from inferscale_memory.facts import AddResult

logger = logging.getLogger(__name__)

WORKERS = 4

Item = dict[str, Any]


class Saves:
    """Saves messages and tells of those that could not be saved.

    Args:
        name: who saves, for the warnings.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool = DaemonPool(WORKERS)

    def begin(self, items: Sequence[Item], save: Callable[[], AddResult]) -> Future[AddResult] | None:
        """Start to save; None where too many saves hang already.

        Args:
            items: what is saved, for the warnings.
            save: saves them; called in a thread of its own, until it returns or the program ends.
        """
        try:
            return self._pool.submit(lambda: self._saved(items, save))
        except BusyError as error:
            self._lost(items, "busy", str(error))
            return None

    def _saved(self, items: Sequence[Item], save: Callable[[], AddResult]) -> AddResult:
        """Save and tell of what was lost, before anybody who waits for the save goes on."""
        try:
            result = save()
        except BaseException as error:
            self._lost(items, "error", f"{type(error).__name__}: {error}")
            raise
        refused = {bad.index: bad.reason for bad in result.errors}
        if refused:
            self._lost([items[at] for at in refused], "refused", "; ".join(refused.values()))
        return result

    def _lost(self, items: Sequence[Item], reason: str, why: str) -> None:
        metrics.AGENT_MEMORY_FAILURES.labels("save", reason).inc()
        named = ", ".join(f"{item['role']} {item['id']}" for item in items)
        logger.warning("%s: messages were not saved (%s): %s", self._name, named, why)
