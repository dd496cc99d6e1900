"""One search per user message: started once, shared by all steps of the turn, waited for until a deadline."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from inferscale_memory.daemons import BusyError, DaemonPool
from inferscale_memory.handle import Handle
from inferscale_memory.scope import Scope

KEPT_TURNS = 1_000
WORKERS = 8


@dataclass(frozen=True)
class Recall:
    """The search of one turn."""

    text: str
    """What was searched for."""
    found: Future[Handle]
    deadline: float
    """On ``time.monotonic``: nobody waits longer, however many steps the turn has."""
    stale: float
    """On ``time.monotonic``: from here on the handle may have expired."""

    @property
    def seconds_left(self) -> float:
        """How long a step may still wait."""
        return self.deadline - time.monotonic()


class Recalls:
    """The searches of the latest turns, by scope and message. Safe to use from several threads.

    Args:
        timeout: seconds that a turn may wait for its search, all steps together.
        ttl: seconds that a handle is good for.
    """

    def __init__(self, *, timeout: float, ttl: float) -> None:
        self._timeout, self._ttl = timeout, ttl
        self._turns: OrderedDict[tuple[str, str], Recall] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = DaemonPool(WORKERS)

    def of(
        self, ids: Mapping[str, Any], message_id: str | None, text: str, search: Callable[[], Handle]
    ) -> tuple[Recall, bool]:
        """The search for a message, and whether this call began it.

        A failed one is not tried again within its turn, and one that was too slow may have come in meanwhile. A text
        that has changed (a redaction) is searched for anew.

        Args:
            ids: scope keywords, checked.
            message_id: of the user's message; None: it is known by its text.
            text: what to search for, not blank.
            search: searches and mints; called in a thread of its own, if nobody has asked before.
        """
        key = self._key(ids, message_id, text)
        now = time.monotonic()
        with self._lock:
            known = self._turns.get(key)
            if known is not None and known.text == text and now < known.stale:
                self._turns.move_to_end(key)
                return known, False
            begun = Recall(text, self._begin(search), now + self._timeout, now + self._ttl)
            self._turns[key] = begun
            self._turns.move_to_end(key)
            while len(self._turns) > KEPT_TURNS:
                self._turns.popitem(last=False)
        return begun, True

    def known(self, ids: Mapping[str, Any], message_id: str) -> Recall | None:
        """The search for a message that is no longer in the conversation (it was summarised), if it is still kept."""
        with self._lock:
            known = self._turns.get(self._key(ids, message_id, ""))
        return known if known is not None and time.monotonic() < known.stale else None

    def drop(self, ids: Mapping[str, Any], message_id: str) -> None:
        """Forget the search for a message: its turn is over, or begins again and asks for what is known by now."""
        with self._lock:
            self._turns.pop(self._key(ids, message_id, ""), None)

    def _begin(self, search: Callable[[], Handle]) -> Future[Handle]:
        try:
            return self._pool.submit(search)
        except BusyError as error:
            refused: Future[Handle] = Future()
            refused.set_exception(error)
            return refused

    @staticmethod
    def _key(ids: Mapping[str, Any], message_id: str | None, text: str) -> tuple[str, str]:
        return Scope.of(**ids).key, f"text {text}" if message_id is None else f"id {message_id}"
