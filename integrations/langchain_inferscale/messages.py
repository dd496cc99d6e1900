"""From LangChain's messages to the engine's (OpenAI's), with the handles that came in a string prompt taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.handles import find_handles, strip_handles
from inferscale_memory.scope import MAX_ID_CHARS
from inferscale_memory.text import check_text

STRING_PROMPT = "inferscale_string_prompt"
"""Mark on the message that a string prompt became, for traces and for LangChain's caches, which compare messages."""


class _StringPrompt(HumanMessage):
    """The message that a string prompt became: in it, the memory's handle may stand anywhere.

    What counts is the class, which no message that came as data (from a client, a checkpoint, a history) can have; a
    mark in its fields anybody could write.
    """

    @classmethod
    def lc_id(cls) -> list[str]:
        """That of a human message, which it is for everybody else."""
        return HumanMessage.lc_id()


def marked(prompt: PromptValue) -> PromptValue:
    """A string prompt as the chat prompt it would become anyway, with the mark; any other prompt as it is."""
    if isinstance(prompt, StringPromptValue):
        return _MarkedPrompt(text=prompt.text)
    return prompt


class _MarkedPrompt(StringPromptValue):
    """A string prompt whose message says so."""

    def to_messages(self) -> list[BaseMessage]:
        """One human message."""
        return [_StringPrompt(content=self.text, additional_kwargs={STRING_PROMPT: True})]


def to_engine(messages: Sequence[BaseMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """OpenAI messages for the engine, and the handles that stood in string prompts.

    Handles in system messages stay: the engine finds them. What a model thought is left out of its earlier answers.
    """
    sent: list[dict[str, Any]] = []
    handles: list[str] = []
    for message in messages:
        if isinstance(message, _StringPrompt) and isinstance(message.content, str):
            handles += find_handles(message.content)
            sent.append({"role": "user", "content": strip_handles(message.content)})
            continue
        one = dict(convert_to_openai_messages(message))
        if isinstance(message, AIMessage) and isinstance(one.get("content"), list):
            one["content"] = "".join(_text(part) for part in one["content"])
        sent.append(one)
    return sent, handles


def usable_id(message: BaseMessage) -> str | None:
    """The message's id, if a turn can be kept under it; an id that cannot is no reason to lose the message."""
    try:
        return check_text(message.id, what="message id", max_chars=MAX_ID_CHARS)
    except InvalidInputError:
        return None


def _text(part: Any) -> str:
    if isinstance(part, Mapping):
        return str(part.get("text", "")) if part.get("type") == "text" else ""
    return part if isinstance(part, str) else ""
