"""``InferScaleMemoryBlock``: the long-term part of LlamaIndex's own ``Memory``."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.memory.memory import BaseMemoryBlock
from pydantic import ConfigDict, Field, PrivateAttr

from inferscale_memory import Memory
from inferscale_memory.daemons import await_for
from inferscale_memory.errors import HandleError, StoreError
from inferscale_memory.handles import find_handles, strip_handles
from inferscale_memory.memory import MAX_K
from inferscale_memory.quality import RefreshField
from llama_index.memory.inferscale._longterm import Options, Searches, checked_ids, fact_tokens, remember, tokens_of
from llama_index.memory.inferscale._messages import items_of
from llama_index.memory.inferscale._turns import Turns

if TYPE_CHECKING:
    from inferscale_memory import Handle

logger = logging.getLogger(__name__)

KEPT_HANDLES = 100
MAX_UNSAVED = 1_000
TURN_SECONDS = 600.0


class InferScaleMemoryBlock(BaseMemoryBlock[list[ChatMessage]]):
    """Facts for ``Memory.from_defaults(memory_blocks=[...])``, as a KV handle in a system message before the history.

    ``Memory`` keeps the conversation and hands over what overflows its ``token_limit``; the block saves what user and
    assistant said of that, once, and recalls facts for the last user message, with one search per turn. The model has
    to be an ``InferScale`` on the memory's engine.

    ``Memory`` counts tokens with its ``tokenizer_fn``, for which a handle is some letters. Give it the block's, and a
    handle counts as the facts behind it: then a block with a ``priority`` above 0 gives up its least relevant facts
    when the limit is passed, and all of them if need be. With priority 0 it gives up none.

    Memory helps and never hinders: a failing search is told of by one warning per outage, and ``Memory`` goes on
    without. So does a failing save, and is tried again with the next messages.

    Whose memory: the ids given. ``Memory``'s own ``session_id`` names its conversation, not a scope.
    ``Memory.reset()`` empties the conversation and leaves blocks alone; ``forget`` deletes what is remembered.

    Raises:
        ScopeError: nobody is named, or an id is blank or malformed.
        pydantic.ValidationError: a field is unknown or out of range.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str = "InferScaleMemory"
    memory: Memory = Field(exclude=True)
    """Keeps the facts; bound to the model's engine."""
    k: int | None = Field(default=None, ge=1, le=MAX_K)
    """How many facts the handle names; None: as the memory is set."""
    refresh: RefreshField | None = None
    """How many of the best-ranked are prefilled as text, ``"all"`` or ``"auto"``; None: as the memory is set."""
    threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Leave out facts of a lower cosine; None: none."""
    timeout: float = Field(default=2.0, gt=0.0)
    """Seconds that a turn waits for its search. Loading the embedder, once, is not counted."""
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None

    _searches: Searches = PrivateAttr()
    _turns: Turns = PrivateAttr()
    _handles: OrderedDict[str, Handle] = PrivateAttr(default_factory=OrderedDict)
    _unsaved: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, **fields: Any) -> None:
        """Take the fields; see the class."""
        super().__init__(**fields)
        # Not in a validator, which would hide a ScopeError in pydantic's own error.
        self._ids()
        ttl = self.memory.settings.handle_ttl / 2
        self._searches = Searches(type(self).__name__, self.timeout, ttl)
        self._turns = Turns(min(ttl, TURN_SECONDS))

    @property
    def tokenizer_fn(self) -> Callable[[str], list[Any]]:
        """For ``Memory.from_defaults(tokenizer_fn=...)``: the model's, and a handle counts as the facts behind it."""
        return self._counted

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> list[ChatMessage]:
        messages = messages or []
        session = str(block_kwargs.get("session_id") or self.name)
        turn = self._turns.of(session, messages)
        if turn is None:
            return []
        text, number = turn
        shown = [item["id"] for item in items_of(session, messages) if item is not None]
        options = Options(self.k, self.refresh, self.threshold)
        begun = await asyncio.to_thread(
            self._searches.begin, self.memory, self._ids(), options, f"{session} {number}", text, shown
        )
        if begun is not None:
            await await_for(begun.recall.found, begun.recall.seconds_left)
        handle = self._searches.outcome(begun)
        return [] if handle is None else [self._message(handle)]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        if not messages:
            return
        session = str(messages[0].additional_kwargs.get("session_id") or self.name)
        items = [item for item in items_of(session, messages) if item is not None]
        with self._lock:
            items, self._unsaved = [*self._unsaved, *items], []
        try:
            await asyncio.to_thread(remember, self.memory, items, self._ids())
        except StoreError as error:
            # Memory has archived them and will not hand them over again.
            with self._lock:
                self._unsaved = [*items, *self._unsaved][-MAX_UNSAVED:]
            logger.warning("%d messages were not remembered yet, and will be tried again: %s", len(items), error)

    async def atruncate(self, content: list[ChatMessage], tokens_to_truncate: int) -> list[ChatMessage] | None:
        """Give up the least relevant facts until ``tokens_to_truncate`` tokens are saved; None: all of them."""
        handles = [handle for message in content for handle in find_handles(message.content or "")]
        known = None if len(handles) != 1 else self._handles.get(handles[0])
        if known is None:
            return None
        kept = list(known.facts)
        while kept and tokens_to_truncate > 0:
            tokens_to_truncate -= fact_tokens(kept.pop().fact.text, self._tokenize)
        if not kept:
            return None
        fewer = await self.memory.aname(kept, self.refresh, **self._ids())
        return [self._message(fewer)]

    async def aforget(self) -> int:
        """Delete every fact and turn of the scope; returns how many facts. Raises as ``Memory.delete_all``."""
        with self._lock:
            self._unsaved = []
        return await self.memory.adelete_all(**self._ids())

    def _message(self, handle: Handle) -> ChatMessage:
        with self._lock:
            self._handles[str(handle)] = handle
            while len(self._handles) > KEPT_HANDLES:
                self._handles.popitem(last=False)
        return ChatMessage(role=MessageRole.SYSTEM, blocks=[TextBlock(text=str(handle))])

    def _ids(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("user_id", "agent_id", "session_id", "tenant_id")}
        return checked_ids(type(self).__name__, given)

    def _tokenize(self, text: str) -> list[Any]:
        return tokens_of(self.memory, text)

    def _counted(self, text: str) -> list[Any]:
        counted = self._tokenize(strip_handles(text))
        for handle in find_handles(text):
            counted += [0] * sum(fact_tokens(fact, self._tokenize) for fact in self._facts(handle))
        return counted

    def _facts(self, handle: str) -> list[str]:
        known = self._handles.get(handle)
        if known is not None:
            return [one.fact.text for one in known.facts]
        try:
            return [one.fact.text for one in self.memory.explain(handle).facts]
        except HandleError:
            return []
