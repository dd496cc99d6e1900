"""What LangChain's conversation classes share: whose conversation, and messages as turns and back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage

from inferscale_memory.errors import ScopeError
from inferscale_memory.handles import strip_handles
from inferscale_memory.scope import Scope
from inferscale_memory.text import is_blank
from langchain_inferscale.context import merged_scope, run_scope
from langchain_inferscale.messages import usable_id

if TYPE_CHECKING:
    from inferscale_memory.facts import AddResult, Turn

logger = logging.getLogger(__name__)

_OWNERS = ("user_id", "agent_id", "session_id")
# Half of a tool call's exchange is refused by model APIs, and calls hold no words to remember.
_UNKEPT_ROLES = frozenset({"tool", "function"})


def checked_ids(**ids: str | None) -> dict[str, Any]:
    """The scope keywords that were given.

    Raises:
        ScopeError: one of them is blank or malformed.
    """
    given = {name: value for name, value in ids.items() if value is not None}
    if given:
        # A tenant alone is complete once the run names the owner.
        Scope.of(**{"session_id": "unnamed", **given})
    return given


def conversation_ids(given: Mapping[str, str], who: str) -> dict[str, Any]:
    """Whose conversation this is: the ids given at construction and those of the run that is going on, all together.

    So it is the scope that a model call of the same run is made with, and the model resolves the memory's handles.

    Args:
        given: from ``checked_ids``.
        who: the class that asks, for the message.

    Raises:
        ScopeError: nobody is named, or the run gives one of the ids another value than the construction did.
    """
    both = merged_scope({f"the {who}": given, "the run": run_scope()})
    if not any(name in both for name in _OWNERS):
        raise ScopeError(
            f"no scope: this {who} was made without user_id, agent_id and session_id, and no run names one. "
            f"Give one at construction, such as {who}(..., user_id='alice'), or run it inside a runnable with "
            "config={'configurable': {'user_id': 'alice'}}; a classic chain invoked by itself does not hand its "
            "config to its memory."
        )
    return both


def items_of(messages: Iterable[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as ``Memory.add`` takes them, without those that hold no words, tool messages, and KV handles."""
    return [item for message in messages if (item := _item(message)) is not None]


def messages_of(turns: Iterable[Turn]) -> list[BaseMessage]:
    """Turns as LangChain's own message classes, with the ids and names they were saved with."""
    return [message for turn in turns if (message := _message(turn)) is not None]


def stripped(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages with KV handles removed from their text."""
    return [
        message.model_copy(update={"content": strip_handles(message.content)})
        if isinstance(message.content, str)
        else message
        for message in messages
    ]


def warn_of_unsaved(result: AddResult) -> None:
    """Tell of messages that could not be saved; the others were."""
    for error in result.errors:
        logger.warning("a message was not saved (%s): %s", error.preview, error.reason)


def _item(message: BaseMessage) -> dict[str, Any] | None:
    role = _role(message)
    text = strip_handles(str(message.text))
    if role is None or is_blank(text):
        return None
    return {"role": role, "content": text, "id": usable_id(message), "name": message.name}


def _role(message: BaseMessage) -> str | None:
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, ChatMessage) and message.role.strip().lower() not in _UNKEPT_ROLES:
        return message.role
    return None


def _message(turn: Turn) -> BaseMessage | None:
    # RunnableWithMessageHistory does not save subclasses of the stock messages.
    name = None if turn.speaker in (None, turn.role.capitalize()) else turn.speaker
    if turn.role == "user":
        return HumanMessage(content=turn.text, id=turn.external_id, name=name)
    if turn.role == "assistant":
        return AIMessage(content=turn.text, id=turn.external_id, name=name)
    if turn.role in ("system", "developer"):
        return SystemMessage(content=turn.text, id=turn.external_id, name=name)
    if turn.role in _UNKEPT_ROLES:
        return None
    return ChatMessage(content=turn.text, role=turn.role, id=turn.external_id, name=name)
