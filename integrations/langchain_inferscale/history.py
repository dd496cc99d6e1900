"""A chat history that is kept in the fact store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from inferscale_memory.errors import InvalidInputError
from langchain_inferscale._conversation import (
    checked_ids,
    conversation_ids,
    items_of,
    messages_of,
    warn_of_unsaved,
)

if TYPE_CHECKING:
    from inferscale_memory import Memory


class InferScaleChatMessageHistory(BaseChatMessageHistory):
    """A conversation that outlives the process, and whose statements are remembered as facts.

    It is a transcript: reading it gives messages and no handle, so it injects nothing by itself. Put a handle beside it
    with ``InferScaleBufferMemory``, ``InferScaleRetriever`` or ``Memory.recall``.

    What is kept of a message is its text, role, name and id. A message saved before under its id is the same message,
    and is kept once. KV handles are removed. Messages without words (a tool call, an image, an empty answer) and tool
    messages are passed over, for half of a tool call's exchange is refused by model APIs; text that cannot be saved (a
    NUL, more than 32,000 characters) is named in a warning. The others of the call are saved in any case. What was
    deleted from the memory is gone from the history too.

    Whose: the ids given here and those that the run names (``configurable`` of its config, a graph's context), all
    together; an id named twice must be the same. With a ``session_id`` the
    conversation is that session's; without one it is whatever the user said and heard in any session.

    Every method may raise ``ScopeError`` (nobody is named, or the run names somebody else) and ``StoreError``, as any
    history kept in a database.

    Args:
        memory: keeps the turns and the facts.
        limit: ``messages`` gives at most so many, the newest; None: all.
        user_id: whose conversation.
        agent_id: as ``user_id``.
        session_id: as ``user_id``.
        tenant_id: as ``user_id``.

    Raises:
        ScopeError: an id is blank or malformed.
        InvalidInputError: ``limit`` is not 1 or more.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        limit: int | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str | None = None,
    ) -> None:
        super().__init__()
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise InvalidInputError(f"limit is {limit!r}; wanted a number of messages, 1 or more, or None for all.")
        self.memory = memory
        self.limit = limit
        self._given = checked_ids(user_id=user_id, agent_id=agent_id, session_id=session_id, tenant_id=tenant_id)

    @property
    def ids(self) -> dict[str, Any]:
        """Scope keywords of the conversation, as of now: the run that is going on may name some of them."""
        return conversation_ids(self._given, type(self).__name__)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The conversation, oldest message first: a fresh list, so that changing it changes nothing that is kept."""
        return messages_of(self.memory.turns(limit=self.limit, **self.ids))

    async def aget_messages(self) -> list[BaseMessage]:
        """Async twin of ``messages``."""
        return messages_of(await self.memory.aturns(limit=self.limit, **self.ids))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Save messages, all in one transaction; see the class for what is kept of them."""
        ids, items = self.ids, items_of(messages)
        if items:
            warn_of_unsaved(self.memory.add(items, **ids))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of ``add_messages``."""
        ids, items = self.ids, items_of(messages)
        if items:
            warn_of_unsaved(await self.memory.aadd(items, **ids))

    def clear(self) -> None:
        """Delete the conversation and every fact of its scope: with a session the session's, else all of the user's."""
        self.memory.delete_all(**self.ids)

    async def aclear(self) -> None:
        """Async twin of ``clear``."""
        await self.memory.adelete_all(**self.ids)
