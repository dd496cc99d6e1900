"""Which of a conversation's messages a prompt is given word for word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock

from llama_index.memory.inferscale._messages import ANSWERING, INSTRUCTING, is_answered, text_of


class Window(NamedTuple):
    """A part of a conversation, as places in it."""

    head: int
    """So many messages from the beginning are given: the system messages that open the conversation, or 0."""
    start: int
    """From here on all are given."""
    tokens: int

    def of(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages themselves."""
        return [*messages[: self.head], *messages[self.start :]]

    def shows(self, at: int) -> bool:
        """Whether the message at a place is given."""
        return at < self.head or at >= self.start


def window_of(
    messages: Sequence[ChatMessage], most: int | None, room: int, count: Callable[[ChatMessage], int]
) -> Window:
    """The newest messages, ``most`` of them at the most and ``room`` tokens.

    It begins where an answer is not torn from its question, nor a tool's result from its call: at a message that
    answers nothing, or at the conversation's own beginning. The turn that is going on, from the last user message, is
    given whole, however long it is: the model may say that it is too long, and nobody else would.

    Args:
        messages: the conversation.
        most: how many; None: only tokens count. On top come system messages at the beginning, and the turn that is
            going on until it is answered.
        room: in tokens.
        count: tokens of a message.
    """
    opening = next((at for at, message in enumerate(messages) if message.role not in INSTRUCTING), len(messages))
    least = _going_on(messages, opening)
    # A question that waits for its answer is none of the newest messages: some callers put it later.
    end = len(messages) if is_answered(messages[least + 1 :]) else least
    first = opening if most is None else max(opening, min(least, end - most))
    starts = [at for at in range(first, least) if at == opening or messages[at].role not in ANSWERING]
    tokens = {at: count(messages[at]) for at in (*range(opening), *range(first, len(messages)))}
    whole = sum(tokens[at] for at in range(least, len(messages)))
    head = sum(tokens[at] for at in range(opening))
    if head + whole > room:
        opening = head = 0
    left = room - head
    for start in starts:
        used = sum(tokens[at] for at in range(start, len(messages)))
        if used <= left:
            return Window(min(opening, start), start, head + used)
    return Window(min(opening, least), least, head + whole)


def message_tokens(message: ChatMessage, tokenize: Callable[[str], Sequence[object]]) -> int:
    """Tokens of a message's text and of the tool calls in it, without what a chat template puts around them."""
    calls = [f"{block.tool_name} {block.tool_kwargs}" for block in message.blocks if isinstance(block, ToolCallBlock)]
    if not calls:
        calls = [str(call) for call in message.additional_kwargs.get("tool_calls") or ()]
    return sum(len(tokenize(text)) for text in (text_of(message), *calls) if text)


def _going_on(messages: Sequence[ChatMessage], opening: int) -> int:
    """Where the turn that is going on begins."""
    places = range(len(messages) - 1, opening - 1, -1)
    users = (at for at in places if messages[at].role == MessageRole.USER)
    sound = (at for at in places if messages[at].role not in ANSWERING)
    return next(users, next(sound, max(opening, len(messages) - 1)))
