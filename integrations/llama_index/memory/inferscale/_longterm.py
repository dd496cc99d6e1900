"""The long-term memory behind a LlamaIndex memory: which it is, whose, and one search per turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.utils import get_tokenizer

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError, ScopeError
from inferscale_memory.opened import open_memories
from inferscale_memory.quality import Refresh
from inferscale_memory.scope import Scope
from inferscale_memory.timeboxed import Outage, Recall, Recalls

if TYPE_CHECKING:
    from inferscale_memory import Handle

logger = logging.getLogger(__name__)

OWNERS = ("user_id", "agent_id", "session_id")


class Options(NamedTuple):
    """How facts are searched for; None: as the memory is set."""

    k: int | None
    refresh: Refresh | None
    threshold: float | None


class Begun(NamedTuple):
    """A turn's search, and whether it was begun by this call, which then tells of a failure."""

    recall: Recall
    new: bool


class Searches:
    """The searches of one LlamaIndex memory: one per turn, with a time limit. Safe to use from several threads.

    Args:
        name: whose they are, for the warnings.
        timeout: seconds that a turn may wait for its search.
        ttl: seconds after which a turn is searched for anew.
    """

    def __init__(self, name: str, timeout: float, ttl: float) -> None:
        self._timeout = timeout
        self._recalls = Recalls(timeout=timeout, ttl=ttl)
        self._outage = Outage(name)

    def begin(
        self, memory: Memory, ids: dict[str, Any], options: Options, turn: str, text: str, shown: Collection[str]
    ) -> Begun | None:
        """Search for a turn's question, unless that was done; None where the memory cannot be searched at all.

        Args:
            memory: where.
            ids: whose.
            options: how.
            turn: names the turn.
            text: the question.
            shown: ids of turns that the prompt holds word for word; their facts take no slot.
        """
        try:
            memory.retriever  # noqa: B018 -- loading the embedder takes seconds once, which no turn's limit is meant for
        except Exception as error:  # whatever an embedder's library raises, the conversation goes on without
            self._outage.failed("error", f"{type(error).__name__}: {error}")
            return None
        return Begun(*self._recalls.of(ids, turn, text, partial(_recall, memory, ids, options, text, shown)))

    def outcome(self, begun: Begun | None) -> Handle | None:
        """The handle, if the search has found facts by now."""
        return None if begun is None else self._outage.outcome(begun.recall, begun.new, self._timeout)


def _recall(memory: Memory, ids: dict[str, Any], options: Options, text: str, shown: Collection[str]) -> Handle:
    exclude = memory.store.facts_of_messages(shown, Scope.of(**ids))
    return memory.recall(text, options.k, options.refresh, threshold=options.threshold, exclude=exclude, **ids)


def remember(memory: Memory, items: Sequence[Mapping[str, Any]], ids: Mapping[str, Any]) -> None:
    """Save messages; those that cannot be saved are told of, the others are saved.

    Raises:
        StoreError: nothing was saved.
    """
    if not items:
        return
    for error in memory.add(list(items), **ids).errors:
        logger.warning("a message was not remembered (%s): %s", error.preview, error.reason)


def checked_ids(who: str, ids: Mapping[str, str | None]) -> dict[str, Any]:
    """The scope keywords that were given.

    Raises:
        ScopeError: nobody is named, or an id is blank or malformed.
    """
    given = {name: value for name, value in ids.items() if value is not None}
    if not any(name in given for name in OWNERS):
        raise ScopeError(
            f"no scope: this {who} was made without user_id, agent_id and session_id, and a memory without an owner "
            f"is refused. Give one, such as {who}(..., user_id='alice'). A chat engine that makes its memory itself "
            "passes none on: give it memory=InferScaleMemory.from_defaults(...), or "
            "memory_cls=InferScaleMemory.bound(user_id='alice')."
        )
    Scope.of(**given)
    return given


def only_memory(engine: object | None, who: str) -> Memory:
    """The memory that is meant where none was named: the only one that is open, on this engine if there is one.

    Raises:
        ConfigError: none is open, or several are.
    """
    found = [memory for memory in open_memories() if engine is None or memory.engine is engine]
    if len(found) == 1:
        return found[0]
    raise ConfigError(
        f"{len(found) or 'no'} memories are open{'' if engine is None else ' on the engine of this llm'}, and {who} "
        "cannot tell which is meant. Give memory=, an inferscale_memory.Memory on the engine of the model."
    )


def memory_at(place: str | None) -> Memory | None:
    """The open memory that an object was saved beside; where several are open there, the newest on an engine."""
    found = open_memories(place) if place else []
    return next((memory for memory in reversed(found) if memory.engine is not None), found[-1] if found else None)


def fact_tokens(text: str, tokenize: Callable[[str], Sequence[Any]]) -> int:
    """Tokens of a fact as it stands in a prompt."""
    return len(tokenize(f"- {text}\n"))


def tokens_of(memory: Memory, text: str) -> list[Any]:
    """Token ids by the tokenizer of the memory's engine; without an engine by LlamaIndex's."""
    # No tokenizer takes a lone surrogate, and counting is no reason to fail.
    sound = text.encode("utf-8", "replace").decode()
    return list((get_tokenizer() if memory.engine is None else memory.engine.tokenize)(sound))
