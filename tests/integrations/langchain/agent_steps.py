"""What the tests of agents share: a memory without an engine, models that are told what to say, a look for leaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asking import embed
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run
from pydantic import Field

from inferscale_memory import Memory
from langchain_inferscale import ChatInferScale

_HANDLE = re.compile(r"kv:[A-Za-z]{8,}")


def plain_memory(folder: Path) -> Memory:
    """A memory without an engine: everything but injection."""
    return Memory(home=folder, embedder=embed, index="numpy")


def holds_handle(thing: Any) -> bool:
    """Whether a handle stands anywhere in a thing's representation, as text or as the bytes of one."""
    return _HANDLE.search(repr(thing)) is not None


class Scripted(GenericFakeChatModel):
    """Says what it was told to, one after the other, and takes tools without calling any; for plumbing only."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self


def says(*answers: str | AIMessage) -> Scripted:
    """A model with a script; a text is an answer."""
    return Scripted(messages=iter(AIMessage(answer) if isinstance(answer, str) else answer for answer in answers))


class Steered(ChatInferScale):
    """The real model on the real engine, with the shape of each answer stated from the messages."""

    shape: Callable[[Sequence[BaseMessage]], str] = Field(exclude=True)
    """The regular expression that the next answer follows."""

    def _request(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> Any:
        return super()._request(messages, stop, {**call, "structured_outputs": {"regex": self.shape(messages)}})


def short_answer(messages: Sequence[BaseMessage]) -> str:
    """A few letters."""
    return "[A-Z][a-z]{2,8}"


def look_up_first(messages: Sequence[BaseMessage]) -> str:
    """A search with the tool where the user says "Look up", and a few letters after it and otherwise."""
    last = messages[-1]
    if isinstance(last, HumanMessage) and last.text.startswith("Look up"):
        return tool_call("search_memory", '{"query": "dog", "k": 2}')
    return short_answer(messages)


def tool_call(name: str, arguments: str) -> str:
    """The expression of one call of a tool, as the engine's parser reads it."""
    call = f'{{"name": "{name}", "arguments": {arguments}}}'
    escaped = re.sub(r"([{}.\[\]()])", r"\\\1", call)  # not re.escape: the engine knows no escaped blanks
    return f"<tool_call>\\n{escaped}\\n</tool_call>"


class Everything(BaseTracer):
    """Keeps every run of a trace, with inputs, outputs, events and options, and every custom event."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.events: list[tuple[str, Any]] = []

    def _persist_run(self, run: Run) -> None:
        self.seen.append(run.model_dump() if hasattr(run, "model_dump") else run.dict())

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.events.append((name, data))
        self.seen.append(kwargs)


class Listener(BaseCallbackHandler):
    """Keeps the arguments of the callbacks that a model's start and end bring."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append((args, kwargs))

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append((args, kwargs))

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append((args, kwargs))


def answers_in(messages: Sequence[AnyMessage]) -> list[AIMessage]:
    """What models said, tool calls included."""
    return [message for message in messages if isinstance(message, AIMessage)]


def injected(message: AIMessage) -> int:
    """Prompt tokens of an answer that came from chunks."""
    return message.response_metadata["kv"]["injected"]


def not_prefilled(message: AIMessage) -> int:
    """Prompt tokens of an answer that were not run through the model.

    The next prompt with the same facts in the same places finds them in native blocks, under the user's own salt, and
    has that much less to inject.
    """
    return injected(message) + message.response_metadata["kv"]["local_hit"]


def recalled(message: AIMessage) -> set[str]:
    """Ids of the facts in an answer's prompt."""
    return {fact["id"] for fact in message.response_metadata["recalled"]}
