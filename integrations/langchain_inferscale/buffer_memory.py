"""A memory for chains and classic agents, in place of ``ConversationBufferMemory``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import ConfigDict, Field

from inferscale_memory import Memory
from inferscale_memory._extras import require
from inferscale_memory.errors import ConfigError, InferScaleError
from inferscale_memory.memory import MAX_K
from inferscale_memory.quality import RefreshField
from langchain_inferscale._conversation import (
    checked_ids,
    conversation_ids,
    items_of,
    messages_of,
    stripped,
    warn_of_unsaved,
)
from langchain_inferscale.history import InferScaleChatMessageHistory

require("langchain_classic", "classic", "InferScaleBufferMemory")

from langchain_classic.memory import ConversationBufferMemory  # noqa: E402
from langchain_classic.memory.utils import get_prompt_input_key  # noqa: E402

if TYPE_CHECKING:
    from inferscale_memory.facts import Turn

logger = logging.getLogger(__name__)

_LAST_EXCHANGE = 2


class _Shown(NamedTuple):
    """What a prompt is given of the conversation."""

    query: str | None
    recent: list[BaseMessage]
    turns: list[str]
    """Ids of the turns that ``recent`` holds word for word."""


class InferScaleBufferMemory(ConversationBufferMemory):
    """The conversation as a handle to what of it answers the input, and its newest turns word for word.

    ``ConversationBufferMemory`` puts the whole conversation into every prompt, which costs more with every turn. This
    one puts in a KV handle for the ``k`` facts that fit the input (from this conversation and whatever else the scope
    remembers), and the ``recent_turns`` newest messages, so that the conversation reads on naturally. Facts that those
    messages state take none of the ``k`` slots. The model has to be a ``ChatInferScale`` or ``InferScaleLLM`` on the
    memory's engine; another one is given the handle as text that means nothing to it.

    With ``return_messages=False`` the variable is the handle on a line of its own, then the recent turns as
    ``ConversationBufferMemory`` writes them; with ``True`` a system message that carries the handle, then the recent
    messages. An empty memory gives ``""`` or ``[]``, and nothing is recalled as long as the whole memory is shown word
    for word. ``buffer`` and its kin are for people: the whole conversation, no handle.

    The question is what stands under the prompt's input key (found as ``save_context`` finds it); where there is none,
    the last thing the user said.

    A failing search is told of by a warning, and the prompt goes on with the recent turns. A conversation that cannot
    be read or saved raises ``StoreError``, as any history kept in a database: a turn is never lost in silence.

    Whose memory: the ids given here (without any, those of ``chat_memory`` where it is an
    ``InferScaleChatMessageHistory``) and those that the run names (``configurable`` of its config, a graph's context),
    all together; an id named twice must be the same. A ``session_id`` keeps conversations apart: what was said in one
    is not recalled in another. Leave it out for a memory that spans them.

    Raises:
        pydantic.ValidationError: a field is unknown or out of range.
        ScopeError: an id is blank or malformed; on use, nobody is named, or the run names somebody else.
        ConfigError: ``max_token_limit`` without ``llm``.
    """

    memory: Memory
    """Keeps the facts, and the turns where ``chat_memory`` is not given; bound to the model's engine."""
    k: int | None = Field(default=None, ge=1, le=MAX_K)
    """How many facts the handle names; None: as the memory is set."""
    refresh: RefreshField | None = None
    """How many of the best-ranked are prefilled as text, ``"all"`` or ``"auto"``; None: as the memory is set."""
    threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Leave out facts of a lower cosine; None: none."""
    recent_turns: int = Field(default=6, ge=0)
    """How many of the newest messages are given word for word; 6 are three exchanges."""
    max_token_limit: int | None = Field(default=None, ge=0)
    """Tokens that those messages may have, counted by ``llm``; the oldest go first. None: no limit."""
    llm: BaseLanguageModel | None = None
    """Counts tokens for ``max_token_limit``."""
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    chat_memory: BaseChatMessageHistory = Field(default=None)  # type: ignore[assignment]
    """Where the conversation is kept; by default in ``memory``. What is saved into another one is remembered as well;
    what it held before is not: hand it to ``InferScaleChatMessageHistory.add_messages`` once."""

    # A misspelt user_id would be left aside, and the turn saved as somebody else's.
    model_config = ConfigDict(extra="forbid")

    def __init__(self, **fields: Any) -> None:
        """Take the fields; see the class."""
        super().__init__(**fields)
        # Not in a validator, which would hide a ScopeError in pydantic's own error.
        given = self._given()
        if self.max_token_limit is not None and self.llm is None:
            raise ConfigError(
                f"max_token_limit is {self.max_token_limit} without a model that counts: give llm= as well, such as "
                "the chain's."
            )
        if self.chat_memory is None:
            self.chat_memory = InferScaleChatMessageHistory(self.memory, **given)

    # -- the prompt's side ---------------------------------------------------------------------------------------------

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The memory variable for these inputs; see the class."""
        ids = self._ids()
        turns = self.memory.turns(limit=self._window, **ids)
        messages = messages_of(turns) if self._keeps_turns(ids) else self.chat_memory.messages
        shown = self._shown(inputs, turns, messages)
        return {self.memory_key: self._written(self._recalled(shown, ids), shown.recent)}

    async def aload_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Async twin of ``load_memory_variables``."""
        ids = self._ids()
        turns = await self.memory.aturns(limit=self._window, **ids)
        messages = messages_of(turns) if self._keeps_turns(ids) else await self.chat_memory.aget_messages()
        # In a thread as well: counting tokens may take the model's tokenizer a while.
        shown = await asyncio.to_thread(self._shown, inputs, turns, messages)
        handle = await asyncio.to_thread(self._recalled, shown, ids)
        return {self.memory_key: self._written(handle, shown.recent)}

    @property
    def _window(self) -> int:
        """How many turns are read: the last exchange in any case, for the question may have to be taken from it."""
        return max(self.recent_turns, _LAST_EXCHANGE)

    def _shown(self, inputs: dict[str, Any], turns: Sequence[Turn], messages: Sequence[BaseMessage]) -> _Shown:
        window = stripped(messages[-self._window :])
        recent = self._within_limit(window[-self.recent_turns :] if self.recent_turns else [])
        said = {str(message.text) for message in recent}
        query = self._input(inputs) or next(
            (text for message in reversed(window) if message.type == "human" and (text := str(message.text)).strip()),
            None,
        )
        return _Shown(query, recent, [turn.id for turn in turns if turn.text in said])

    def _within_limit(self, recent: list[BaseMessage]) -> list[BaseMessage]:
        if self.max_token_limit is None or self.llm is None:
            return recent
        while recent and self.llm.get_num_tokens_from_messages(recent) > self.max_token_limit:
            recent = recent[1:]
        return recent

    def _input(self, inputs: dict[str, Any]) -> str | None:
        """What the user says now; None where that cannot be told: saving complains of it, loading must not."""
        key = self.input_key
        if key is None:
            try:
                key = get_prompt_input_key(inputs, self.memory_variables)
            except ValueError:
                return None
        given = inputs.get(key)
        if isinstance(given, list | tuple) and given:
            given = given[-1]
        text = str(given.text) if isinstance(given, BaseMessage) else given
        return text if isinstance(text, str) and text.strip() else None

    def _recalled(self, shown: _Shown, ids: dict[str, Any]) -> str | None:
        """A handle; None where there is nothing to recall, or the search failed."""
        if shown.query is None:
            return None
        try:
            stated = self.memory.store.facts_of_turns(shown.turns)
            handle = self.memory.recall(
                shown.query,
                self.k,
                self.refresh,
                threshold=self.threshold,
                exclude={fact_id for fact_ids in stated.values() for fact_id in fact_ids},
                **ids,
            )
        except InferScaleError as error:
            logger.warning("nothing was recalled, the prompt goes on with the recent turns: %s", error)
            return None
        return str(handle) if handle.facts else None

    def _written(self, handle: str | None, recent: list[BaseMessage]) -> str | list[BaseMessage]:
        if self.return_messages:
            return recent if handle is None else [SystemMessage(content=handle), *recent]
        text = self._buffer_as_str(recent)
        return "\n".join(part for part in (handle, text) if part)

    # -- the saving side -----------------------------------------------------------------------------------------------

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, str]) -> None:
        """Save what was said and answered: once, as turns and facts, and into a ``chat_memory`` of another kind too.

        Raises:
            ValueError: the input or output key cannot be told; as ``ConversationBufferMemory``.
            StoreError: it could not be saved.
        """
        said, answered = self._get_input_output(inputs, outputs)
        messages = stripped([HumanMessage(content=said), AIMessage(content=answered)])
        ids = self._ids()
        if not self._keeps_turns(ids) and (items := items_of(messages)):
            warn_of_unsaved(self.memory.add(items, **ids))
        self.chat_memory.add_messages(messages)

    async def asave_context(self, inputs: dict[str, Any], outputs: dict[str, str]) -> None:
        """Async twin of ``save_context``."""
        said, answered = self._get_input_output(inputs, outputs)
        messages = stripped([HumanMessage(content=said), AIMessage(content=answered)])
        ids = self._ids()
        if not self._keeps_turns(ids) and (items := items_of(messages)):
            warn_of_unsaved(await self.memory.aadd(items, **ids))
        await self.chat_memory.aadd_messages(messages)

    def clear(self) -> None:
        """Forget the conversation and every fact of the scope: with a session the session's, else all of the user's."""
        ids = self._ids()
        if not self._keeps_turns(ids):
            self.memory.delete_all(**ids)
        self.chat_memory.clear()

    async def aclear(self) -> None:
        """Async twin of ``clear``."""
        ids = self._ids()
        if not self._keeps_turns(ids):
            await self.memory.adelete_all(**ids)
        await self.chat_memory.aclear()

    # -- whose ---------------------------------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        return checked_ids(
            user_id=self.user_id, agent_id=self.agent_id, session_id=self.session_id, tenant_id=self.tenant_id
        )

    def _ids(self) -> dict[str, Any]:
        given = self._given()
        if not given and isinstance(self.chat_memory, InferScaleChatMessageHistory):
            return self.chat_memory.ids
        return conversation_ids(given, type(self).__name__)

    def _keeps_turns(self, ids: dict[str, Any]) -> bool:
        """Whether ``chat_memory`` writes to this very memory and scope, so that saving twice would double a turn."""
        history = self.chat_memory
        return (
            isinstance(history, InferScaleChatMessageHistory) and history.memory is self.memory and history.ids == ids
        )
