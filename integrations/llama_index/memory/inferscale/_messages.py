"""Chat messages: who speaks, what was said in words, and which turn is going on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

from inferscale_memory.handles import strip_handles
from inferscale_memory.scope import digest
from inferscale_memory.text import is_blank

ANSWERING = frozenset(
    {MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL, MessageRole.TOOL, MessageRole.FUNCTION}
)
"""Roles that answer something: no prompt may begin with them, for what they answer would be missing."""
INSTRUCTING = frozenset({MessageRole.SYSTEM, MessageRole.DEVELOPER})

_SPEAKERS = {MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant"}
_SPEAKERS |= dict.fromkeys((MessageRole.CHATBOT, MessageRole.MODEL), "assistant")
# What ReActAgent leaves in a memory: its reasoning, and the answer at the end of it.
_REASONING = re.compile(r"\A\s*Thought:.*^Answer(?: \(Starts With\))?:(?P<answer>.*)\Z", re.DOTALL | re.MULTILINE)
_THOUGHT = re.compile(r"\A\s*Thought:.*^(?:Action|Observation):", re.DOTALL | re.MULTILINE)


class Question(NamedTuple):
    """What the user wants to know now."""

    text: str
    turn: int
    """Which of the conversation's turns it opens, counted from 1."""


def cleaned(message: ChatMessage) -> ChatMessage | None:
    """A copy without KV handles; None for a system message that held nothing else, such as a memory's own."""
    copy = message.model_copy(deep=True)
    found = False
    for block in copy.blocks:
        if isinstance(block, TextBlock) and (text := strip_handles(block.text)) != block.text:
            block.text, found = text, True
    if found and copy.role in INSTRUCTING and is_blank(copy.content or ""):
        return None
    return copy


def text_of(message: ChatMessage) -> str:
    """The text of a message without handles; empty where it has none."""
    return strip_handles(message.content or "")


def calls_tools(message: ChatMessage) -> bool:
    """Whether an assistant's message asks for tools, so that it is no answer yet."""
    return bool(message.additional_kwargs.get("tool_calls")) or any(
        isinstance(block, ToolCallBlock) for block in message.blocks
    )


def words_of(message: ChatMessage) -> str:
    """What the user or the assistant said, to be remembered; empty for tool chatter and for everybody else."""
    speaker = _SPEAKERS.get(message.role)
    if speaker is None or calls_tools(message):
        return ""
    text = text_of(message)
    if speaker == "assistant":
        if reasoned := _REASONING.match(text):
            text = reasoned["answer"].strip()
        elif _THOUGHT.match(text):
            return ""
    return "" if is_blank(text) else text


def items_of(conversation: str, messages: Sequence[ChatMessage]) -> list[dict[str, Any] | None]:
    """Each message as ``Memory.add`` takes it; None for those that are not remembered.

    The id of a message is made of the conversation, who says what, and how often that was said before, so that it is
    the same whenever the same conversation is given again: whole, or without its oldest messages.
    """
    said: Counter[tuple[str, str]] = Counter()
    items: list[dict[str, Any] | None] = []
    for message in messages:
        text = words_of(message)
        if not text:
            items.append(None)
            continue
        role = _SPEAKERS[message.role]
        said[role, text] += 1
        identity = digest("llama-index turn", conversation, role, _bytes(text), str(said[role, text]))[:32]
        items.append({"role": role, "content": text, "id": identity})
    return items


def is_answered(later: Sequence[ChatMessage]) -> bool:
    """Whether the messages that follow a user's hold the answer, not only steps towards it."""
    return any(_SPEAKERS.get(message.role) == "assistant" and not calls_tools(message) for message in later)


def last_question(messages: Sequence[ChatMessage]) -> int | None:
    """Where the last user message stands."""
    return next((at for at in reversed(range(len(messages))) if messages[at].role == MessageRole.USER), None)


def question_of(messages: Sequence[ChatMessage], given: str | None) -> Question | None:
    """The question that is to be answered; None where nothing was asked in words.

    Args:
        messages: the conversation; some callers put the user's message before they ask, others after.
        given: what the caller says the question is. The last user message if it is that one, and not answered yet;
            else the one that is about to be put.
    """
    at = last_question(messages)
    turns = sum(message.role == MessageRole.USER for message in messages)
    asked = "" if at is None else text_of(messages[at]).strip()
    wanted = strip_handles(given or "").strip()
    if wanted and (wanted != asked or at is None or is_answered(messages[at + 1 :])):
        return Question(wanted, turns + 1)
    return Question(asked, turns) if asked and not is_blank(asked) else None


def _bytes(text: str) -> bytes:
    # A lone surrogate cannot be saved, but it must not keep the rest of the conversation from being.
    return text.encode("utf-8", "surrogatepass")
