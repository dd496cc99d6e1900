"""Which messages of an agent's state are the turn that is going on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from inferscale_memory.handles import strip_handles
from langchain_inferscale.messages import usable_id


def opening_of(messages: Sequence[AnyMessage], ids: Collection[str] = ()) -> list[HumanMessage]:
    """The user's messages that opened the turn.

    Args:
        messages: the state's.
        ids: of the opening messages, if they were noted when the turn began; those that are left are given back.
            Without any: the last user message and those right before it.
    """
    if ids:
        return [message for message in messages if isinstance(message, HumanMessage) and message.id in ids]
    opening: list[HumanMessage] = []
    for message in reversed(messages):
        if _is_users(message):
            assert isinstance(message, HumanMessage)
            opening.insert(0, message)
        elif opening:
            break
    return opening


def answer_of(messages: Sequence[AnyMessage]) -> AIMessage | None:
    """The answer that ended the turn; None where it ended in a tool's result or in no words."""
    last = messages[-1] if messages else None
    if not isinstance(last, AIMessage) or last.tool_calls or last.invalid_tool_calls or not words_of(last).strip():
        return None
    return last


def words_of(message: AnyMessage) -> str:
    """The text of a message, without handles; empty where it has none (an image, a tool call)."""
    return strip_handles(str(message.text))


def item_of(message: AnyMessage) -> dict[str, Any]:
    """A message as ``Memory.add`` takes it; its id makes saving it again harmless."""
    role = "user" if isinstance(message, HumanMessage) else "assistant"
    return {"role": role, "content": words_of(message), "id": usable_id(message), "name": message.name}


def _is_users(message: AnyMessage) -> bool:
    # The summary that SummarizationMiddleware leaves is a HumanMessage too; nobody said it.
    return isinstance(message, HumanMessage) and message.additional_kwargs.get("lc_source") != "summarization"
