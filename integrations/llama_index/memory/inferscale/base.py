"""``InferScaleMemory``: a memory for chat engines and agents, in place of ``ChatMemoryBuffer`` and ``Memory``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.llms.llm import LLM

from inferscale_memory import Memory
from inferscale_memory.daemons import await_for, wait_for
from inferscale_memory.handle import Handle
from llama_index.memory.inferscale._kept import DEFAULT_TOKEN_LIMIT, KeptMemory
from llama_index.memory.inferscale._longterm import Begun, Options, checked_ids, fact_tokens, only_memory, remember
from llama_index.memory.inferscale._messages import cleaned, items_of, question_of
from llama_index.memory.inferscale._window import Window, message_tokens, window_of

LIMIT_OF_WINDOW = 0.75
"""Part of the model's length that a memory may fill, as with ``ChatMemoryBuffer``."""


class _Asked(NamedTuple):
    """What one call of ``get`` works with."""

    messages: list[ChatMessage]
    window: Window
    room: int
    search: Begun | None


class InferScaleMemory(KeptMemory):
    """The conversation as its newest turns word for word, and a KV handle to whatever else answers the question.

    ``get`` gives a system message that holds the handle (none where nothing was found), then the ``recent_turns``
    newest messages and the question. What is put into it is kept twice: the messages as they are at hand
    (``chat_store``), and what user and assistant said, as turns and facts, in ``memory``, where it outlives the
    conversation and the process. Tool calls, tool results and an agent's reasoning are kept at hand only. The model has
    to be an ``InferScale`` on the memory's engine; another one is given a handle that means nothing to it.

    One search per user turn, whatever the number of ``get`` calls and whether the user's message is put before or
    after them: further calls of the turn get the same handle. Facts that come from messages shown word for word take
    none of the ``k`` slots. A search that fails or takes longer than ``timeout`` is told of by one warning per outage,
    and the conversation goes on with its recent turns. A message that cannot be saved raises ``StoreError`` and is not
    put: putting it again, or setting the same history again, saves once. Messages that come out are copies.

    ``token_limit`` covers recent turns and the facts behind the handle, on top of ``initial_token_count``, counted by
    the engine's tokenizer. The oldest turns go first, then the least relevant facts. Cut is only where a user or system
    message stands, so what is left never begins with an answer or a tool's result. System messages that open the
    conversation stay in front. The last user message and what follows it is given in any case.

    ``reset`` ends the conversation: what is at hand goes, what the user is remembered for stays. ``forget`` deletes
    that too.

    Whose memory: the ids given, at least one of user, agent and session. With a ``session_id`` what was said in one
    session is not recalled in another. Use one object per conversation; any number may share one ``Memory``.

    It can be saved (``to_dict``, ``to_string``, ``Context.to_dict``, pickle) with the messages at hand and the ids, and
    without secrets and handles. Restored in any process, it finds the open ``Memory`` of the same database by itself.
    Keep what was saved where users cannot change it: the ids say whose memory is read.

    Raises:
        ScopeError: nobody is named, or an id is blank or malformed.
        pydantic.ValidationError: a field is unknown or out of range.
    """

    @classmethod
    def class_name(cls) -> str:
        """Name for serialisation."""
        return "InferScaleMemory"

    @classmethod
    def from_defaults(
        cls,
        memory: Memory | None = None,
        chat_history: Sequence[ChatMessage] | None = None,
        llm: LLM | None = None,
        token_limit: int | None = None,
        **fields: Any,
    ) -> Self:
        """Make one; what is not given has the defaults of the class.

        Args:
            memory: without it, the only memory that is open in this process, or on the engine of ``llm``.
            chat_history: messages to begin with. Their words are remembered as if they were put.
            llm: the model that answers.
            token_limit: by default three quarters of the model's length, or 3,000 without an engine.
            fields: those of the class; ids, ``recent_turns``, ``k``, ``chat_store`` ...

        Raises:
            ConfigError: no memory is given, and it cannot be told which is meant.
            ScopeError: nobody is named.
            StoreError: ``chat_history`` cannot be saved.
        """
        checked_ids(cls.__name__, {name: fields.get(name) for name in ("user_id", "agent_id", "session_id")})
        engine = getattr(llm, "engine", None)
        memory = memory or only_memory(engine, cls.__name__)
        engine = engine or memory.engine
        if token_limit is None:
            token_limit = DEFAULT_TOKEN_LIMIT if engine is None else int(engine.max_model_len * LIMIT_OF_WINDOW)
        made = cls(memory=memory, token_limit=token_limit, **fields)
        if chat_history:
            made.set(list(chat_history))
        return made

    @classmethod
    def bound(cls, memory: Memory | None = None, **fields: Any) -> type[Self]:
        """A ``memory_cls`` for chat engines, which call its ``from_defaults`` with a history and a limit only.

        ::

            SimpleChatEngine.from_defaults(llm=llm, memory_cls=InferScaleMemory.bound(memory, user_id="alice"))

        Args:
            memory: as for ``from_defaults``.
            fields: as for ``from_defaults``; they come before the engine's own.
        """

        class Bound(cls):  # type: ignore[misc, valid-type]
            @classmethod
            def from_defaults(_, **given: Any) -> Any:
                return cls.from_defaults(**{**given, "memory": memory, **fields})

        return cast("type[Self]", Bound)

    # -- the prompt's side ---------------------------------------------------------------------------------------------

    def get(self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **_: Any) -> list[ChatMessage]:
        """The handle and the recent turns; see the class.

        Args:
            input: the user's question; None: the last user message. It is not put.
            initial_token_count: what the caller puts in front, in tokens.

        Raises:
            ValueError: ``initial_token_count`` is above ``token_limit``.
        """
        asked = self._begin(input, initial_token_count)
        if asked.search is not None:
            wait_for(asked.search.recall.found, asked.search.recall.seconds_left)
        return self._finish(asked)

    async def aget(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **_: Any
    ) -> list[ChatMessage]:
        """Async twin of ``get``."""
        asked = await asyncio.to_thread(self._begin, input, initial_token_count)
        if asked.search is not None:
            await await_for(asked.search.recall.found, asked.search.recall.seconds_left)
        return await asyncio.to_thread(self._finish, asked)

    def _begin(self, given: str | ChatMessage | None, before: int) -> _Asked:
        if before > self.token_limit:
            raise ValueError(
                f"Initial token count exceeds token limit: {before} tokens stand in front, and token_limit is "
                f"{self.token_limit}. Shorten the system prompt or raise the limit."
            )
        with self._lock:
            messages, history = self._kept(), self._history
        room = self.token_limit - before
        window = self._window(messages, int(room * self.chat_history_token_ratio))
        question = question_of(messages, given.content if isinstance(given, ChatMessage) else given)
        if question is None:
            return _Asked(messages, window, room, None)
        shown = [
            item["id"]
            for at, item in enumerate(items_of(self.conversation_id, messages))
            if item is not None and window.shows(at)
        ]
        turn = f"{history} {question.turn} {question.text}"
        options = Options(self.k, self.refresh, self.threshold)
        memory = self._long_term()
        search = self._searching(memory).begin(memory, self._ids(), options, turn, question.text, shown)
        return _Asked(messages, window, room, search)

    def _finish(self, asked: _Asked) -> list[ChatMessage]:
        handle = None if asked.search is None else self._searching(self._long_term()).outcome(asked.search)
        if handle is not None:
            handle = self._fitting(handle, asked.room - asked.window.tokens)
        window = asked.window if handle is not None else self._window(asked.messages, asked.room)
        recent = [message.model_copy(deep=True) for message in window.of(asked.messages)]
        if handle is None:
            return recent
        return [ChatMessage(role=MessageRole.SYSTEM, blocks=[TextBlock(text=str(handle))]), *recent]

    def _fitting(self, handle: Handle, room: int) -> Handle | None:
        """The handle of as many of the best-ranked facts as there is room for."""
        kept = 0
        for scored in handle.facts:
            room -= fact_tokens(scored.fact.text, self._tokenize)
            if room < 0:
                break
            kept += 1
        if kept == len(handle.facts):
            return handle
        return self._long_term().name(handle.facts[:kept], self.refresh, **self._ids()) if kept else None

    def _window(self, messages: Sequence[ChatMessage], room: int) -> Window:
        return window_of(messages, self.recent_turns, room, lambda one: message_tokens(one, self._tokenize))

    # -- the saving side -----------------------------------------------------------------------------------------------

    def put(self, message: ChatMessage) -> None:
        """Add a message; see the class.

        Raises:
            StoreError: it could not be saved, and was not added.
        """
        self.put_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages, saved in one transaction. Raises as ``put`` does."""
        new = [copy for message in messages if (copy := cleaned(message)) is not None]
        with self._lock:
            before = self._kept()
            self._remember([*before, *new], len(before))
            for message in new:
                self.chat_store.add_message(self.chat_store_key, message)

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Put these in place of the messages at hand; what of them is remembered already is not saved again.

        Raises:
            StoreError: they could not be saved, and nothing has changed.
        """
        new = [copy for message in messages if (copy := cleaned(message)) is not None]
        with self._lock:
            self._remember(new, 0)
            self.chat_store.set_messages(self.chat_store_key, new)
            self._history += 1

    def reset(self) -> None:
        """Begin a new conversation. What the user is remembered for stays; ``forget`` deletes that."""
        with self._lock:
            self.chat_store.delete_messages(self.chat_store_key)
            self.conversation_id = uuid.uuid4().hex
            self._history += 1

    def forget(self) -> int:
        """Delete every fact and turn of the scope, and reset: with a session the session's, else all of the user's.

        Returns:
            How many facts there were.

        Raises:
            StoreError: as ``Memory.delete_all``.
        """
        deleted = self._long_term().delete_all(**self._ids())
        self.reset()
        return deleted

    async def aforget(self) -> int:
        """Async twin of ``forget``."""
        return await asyncio.to_thread(self.forget)

    def _remember(self, messages: Sequence[ChatMessage], known: int) -> None:
        if self.save:
            items = items_of(self.conversation_id, messages)[known:]
            remember(self._long_term(), [item for item in items if item is not None], self._ids())
