"""Tells the turns of a conversation apart where only its messages are seen, and some of them go."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from inferscale_memory.text import is_blank
from llama_index.memory.inferscale._messages import is_answered, last_question, text_of

KEPT_SESSIONS = 1_000


@dataclass
class _Turn:
    text: str
    before: str | None
    """The message before the question; None where it opens the conversation, or what was before is gone."""
    answered: bool
    number: int
    begun: float


class Turns:
    """Which turn is going on, by session. Safe to use from several threads.

    Args:
        seconds: a turn that lasts longer counts as another one.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sessions: OrderedDict[str, _Turn] = OrderedDict()
        self._lock = threading.Lock()
        self._number = 0

    def of(self, session: str, messages: Sequence[ChatMessage]) -> tuple[str, int] | None:
        """The question, and a number that stays the same as long as its turn goes on; None: nothing was asked.

        Args:
            session: which conversation.
            messages: as they are now. The question may stand at the end once more.
        """
        at = _first_of_the_question(messages)
        if at is None or is_blank(text_of(messages[at])):
            return None
        text = text_of(messages[at]).strip()
        later = messages[at + 1 :]
        alone = all(message.role == MessageRole.USER for message in later)
        now = _Turn(text, text_of(messages[at - 1]) if at else None, is_answered(later), 0, time.monotonic())
        with self._lock:
            known = self._sessions.get(session)
            if known is not None and self._same(known, now, alone):
                known.answered |= now.answered
                now = known
            else:
                self._number += 1
                now.number = self._number
            self._sessions[session] = now
            self._sessions.move_to_end(session)
            while len(self._sessions) > KEPT_SESSIONS:
                self._sessions.popitem(last=False)
            return now.text, now.number

    def _same(self, known: _Turn, now: _Turn, alone: bool) -> bool:
        if known.text != now.text or now.begun - known.begun > self._seconds:
            return False
        if known.answered and not now.answered:
            return False
        # In the middle of a turn older messages may be taken away; at its beginning they are all there.
        return known.before == now.before or (now.before is None and not alone)


def _first_of_the_question(messages: Sequence[ChatMessage]) -> int | None:
    at = last_question(messages)
    while at:
        earlier = last_question(messages[:at])
        if earlier is None or text_of(messages[earlier]) != text_of(messages[at]):
            break
        if is_answered(messages[earlier + 1 : at]):
            break
        at = earlier
    return at
