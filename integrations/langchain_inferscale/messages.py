"""From LangChain's messages to the engine's (OpenAI's), with the handles that came in a string prompt taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue

from inferscale_memory.handles import find_handles, strip_handles

STRING_PROMPT = "inferscale_string_prompt"
"""Mark on the message that a string prompt became: in it, the memory's handle may stand anywhere."""


def marked(prompt: PromptValue) -> PromptValue:
    """A string prompt as the chat prompt it would become anyway, with the mark; any other prompt as it is."""
    if isinstance(prompt, StringPromptValue):
        return _MarkedPrompt(text=prompt.text)
    return prompt


class _MarkedPrompt(StringPromptValue):
    """A string prompt whose message says so."""

    def to_messages(self) -> list[BaseMessage]:
        """One human message."""
        return [HumanMessage(content=self.text, additional_kwargs={STRING_PROMPT: True})]


def to_engine(messages: Sequence[BaseMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """OpenAI messages for the engine, and the handles that stood in string prompts.

    Handles in system messages stay: the engine finds them. What a model thought is left out of its earlier answers.
    """
    sent: list[dict[str, Any]] = []
    handles: list[str] = []
    for message in messages:
        if message.additional_kwargs.get(STRING_PROMPT) and isinstance(message.content, str):
            handles += find_handles(message.content)
            sent.append({"role": "user", "content": strip_handles(message.content)})
            continue
        one = dict(convert_to_openai_messages(message))
        if isinstance(message, AIMessage) and isinstance(one.get("content"), list):
            one["content"] = "".join(_text(part) for part in one["content"])
        sent.append(one)
    return sent, handles


def _text(part: Any) -> str:
    if isinstance(part, Mapping):
        return str(part.get("text", "")) if part.get("type") == "text" else ""
    return part if isinstance(part, str) else ""
