"""What an ``InferScaleMemory`` is made of, and how it is saved and restored."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY, BaseMemory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from pydantic import ConfigDict, Field, PrivateAttr, computed_field, model_validator

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError
from inferscale_memory.memory import MAX_K
from inferscale_memory.opened import open_memories
from inferscale_memory.quality import RefreshField
from llama_index.memory.inferscale._longterm import Searches, checked_ids, memory_at, tokens_of

DEFAULT_TOKEN_LIMIT = 3000


class KeptMemory(BaseMemory):
    """Fields, the messages at hand, the long-term memory behind them, and saving and restoring all that."""

    # A misspelt user_id would be left aside, and the turn saved as somebody else's.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    memory: Memory | None = Field(default=None, exclude=True, repr=False)
    """Keeps facts and turns, bound to the model's engine. After a restoration None until it is open."""
    chat_store: BaseChatStore = Field(default_factory=SimpleChatStore, exclude=True, repr=False)
    """Keeps the messages at hand."""
    chat_store_key: str = DEFAULT_CHAT_STORE_KEY
    """Under which they are kept; each conversation in a shared store needs its own."""
    tokenizer_fn: Callable[[str], list[Any]] | None = Field(default=None, exclude=True, repr=False)
    """Counts tokens; by default the tokenizer of the memory's engine, without one LlamaIndex's."""
    token_limit: int = Field(default=DEFAULT_TOKEN_LIMIT, ge=1)
    chat_history_token_ratio: float = Field(default=0.7, ge=0.0, le=1.0)
    """Part of the limit that the recent turns may have where facts want the rest."""
    recent_turns: int | None = Field(default=6, ge=0)
    """How many messages before the question are given word for word; 6 are three exchanges. None: as many as fit."""
    k: int | None = Field(default=None, ge=1, le=MAX_K)
    """How many facts the handle names; None: as the memory is set."""
    refresh: RefreshField | None = None
    """How many of the best-ranked are prefilled as text, ``"all"`` or ``"auto"``; None: as the memory is set."""
    threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Leave out facts of a lower cosine; None: none."""
    timeout: float = Field(default=2.0, gt=0.0)
    """Seconds that a turn waits for its search. Loading the embedder, once, is not counted."""
    save: bool = True
    """False remembers nothing of this conversation; it still recalls."""
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    conversation_id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)
    """Tells a repetition from a retry. Give one where each request makes a new object."""
    place: str | None = None
    """Where its memory is found again: ``Memory.place``."""

    _lock: Any = PrivateAttr(default_factory=threading.RLock)
    _searches: Searches | None = PrivateAttr(default=None)
    _history: int = PrivateAttr(default=0)

    def __init__(self, **fields: Any) -> None:
        """Take the fields; see the class."""
        super().__init__(**fields)
        # Not in a validator, which would hide a ScopeError in pydantic's own error.
        self._ids()
        if self.memory is None:
            self.memory = memory_at(self.place)
        if self.memory is not None:
            self.place = self.memory.place
        if self.tokenizer_fn is None:
            # Chat engines look for it to count what they put in front.
            self.tokenizer_fn = self._tokens

    def get_all(self) -> list[ChatMessage]:
        """The whole conversation at hand, without handles; copies."""
        return [message.model_copy(deep=True) for message in self._kept()]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def messages(self) -> list[ChatMessage]:
        """What is saved of the conversation at hand."""
        return self.get_all()

    def _kept(self) -> list[ChatMessage]:
        return list(self.chat_store.get_messages(self.chat_store_key))

    # -- what it stands on ---------------------------------------------------------------------------------------------

    def _ids(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("user_id", "agent_id", "session_id", "tenant_id")}
        return checked_ids("InferScaleMemory", given)

    def _long_term(self) -> Memory:
        with self._lock:
            self.memory = self.memory or memory_at(self.place)
            if self.memory is None:
                raise ConfigError(
                    f"this {type(self).__name__} was restored, and the memory it was saved beside is not open in this "
                    f"process (of {len(open_memories())} that are). Open it with Memory(engine) on the same home or "
                    "database, or set the attribute: restored.memory = memory."
                )
            return self.memory

    def _searching(self, memory: Memory) -> Searches:
        with self._lock:
            if self._searches is None:
                # Half, so that a handle does not expire between two steps of one turn.
                self._searches = Searches(type(self).__name__, self.timeout, memory.settings.handle_ttl / 2)
            return self._searches

    def _tokenize(self, text: str) -> list[Any]:
        return (self.tokenizer_fn or self._tokens)(text)

    def _tokens(self, text: str) -> list[Any]:
        return tokens_of(self._long_term(), text)

    # -- saved and restored --------------------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _restored(cls, values: Any) -> Any:
        """Take the messages of a saved one back into its store, unless they are there, in a store that is given."""
        if not isinstance(values, Mapping):
            return values
        values = {name: value for name, value in values.items() if name != "class_name"}
        saved = values.pop("messages", None)
        if saved is not None and values.get("chat_store") is None:
            key = values.get("chat_store_key", DEFAULT_CHAT_STORE_KEY)
            values["chat_store"] = SimpleChatStore(store={key: [ChatMessage.model_validate(one) for one in saved]})
        return values

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Plain data for JSON: settings, ids, the messages at hand; no handle and no secret."""
        return self.model_dump(**{"mode": "json", **kwargs})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **given: Any) -> Self:
        """Restore one.

        Args:
            data: from ``to_dict``.
            given: what cannot be saved, where it shall not be found or made: ``memory``, ``chat_store`` (with the
                messages it holds), ``tokenizer_fn``.
        """
        return cls(**{**data, **given})

    def to_string(self) -> str:
        """``to_dict`` as JSON."""
        return self.to_json()

    @classmethod
    def from_string(cls, json_str: str, **given: Any) -> Self:
        """Restore one from ``to_string``; see ``from_dict``."""
        return cls.from_json(json_str, **given)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.from_dict(self.to_dict(), memory=self.memory)
