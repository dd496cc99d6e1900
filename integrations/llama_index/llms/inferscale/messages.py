"""From LlamaIndex's messages to the engine's (OpenAI's), with the handles that came in a string prompt taken out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate, RichPromptTemplate, SelectorPromptTemplate

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.handles import find_handles, strip_handles

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}
# What a model thought before, and a mark for somebody else's cache: neither is sent.
_LEFT_OUT = (ThinkingBlock, CachePoint, ToolCallBlock)


class StringPrompt(ChatMessage):
    """The message that a string prompt became: in it, the memory's handle may stand anywhere.

    A class, not a key of ``additional_kwargs``: what a client sends as JSON can never be one.
    """


def is_string_template(prompt: BasePromptTemplate, llm: BaseLLM) -> bool:
    """Whether a template makes one string, which a chat model is sent as a single user message."""
    while isinstance(prompt, SelectorPromptTemplate):
        prompt = prompt.select(llm)
    if isinstance(prompt, RichPromptTemplate):
        return not prompt.is_chat_template
    return isinstance(prompt, PromptTemplate)


def marked(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages with those of the user known as string prompts."""
    return [
        StringPrompt(blocks=message.blocks, additional_kwargs=message.additional_kwargs)
        if message.role == MessageRole.USER
        else message
        for message in messages
    ]


def formatted(prompt: BasePromptTemplate, llm: BaseLLM, prompt_args: Mapping[str, Any]) -> list[ChatMessage]:
    """The messages of a template; of a string template, known as what they are."""
    messages = prompt.format_messages(llm=llm, **prompt_args)
    return marked(messages) if is_string_template(prompt, llm) else messages


def to_engine(messages: Sequence[ChatMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """OpenAI messages for the engine, and the handles that stood in string prompts.

    Handles in system messages stay: the engine finds them. Of ``additional_kwargs`` nothing is sent but the ids of tool
    calls, and the calls themselves where no block holds them.

    Raises:
        InvalidInputError: a message holds an image, audio, video or a document.
    """
    sent: list[dict[str, Any]] = []
    handles: list[str] = []
    for message in messages:
        role = _ROLES.get(message.role, message.role.value)
        text = "\n".join(_texts(message.blocks, role))
        if isinstance(message, StringPrompt):
            handles += find_handles(text)
            text = strip_handles(text)
        one: dict[str, Any] = {"role": role, "content": text}
        if role == "tool":
            one["tool_call_id"] = str(message.additional_kwargs.get("tool_call_id") or "")
        if role == "assistant" and (calls := _tool_calls(message)):
            one["tool_calls"] = calls
        sent.append(one)
    return sent, handles


def _texts(blocks: Sequence[Any], role: str) -> list[str]:
    found: list[str] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            found.append(block.text)
        elif isinstance(block, CitableBlock):
            found += _texts(block.content, role)
        elif isinstance(block, CitationBlock):
            found += _texts([block.cited_content], role)
        elif not isinstance(block, _LEFT_OUT):
            raise InvalidInputError(
                f"the {role} message holds a {type(block).__name__}; the engine's models read text only. Give its text "
                "in a TextBlock, or leave it out."
            )
    return found


def _tool_calls(message: ChatMessage) -> list[dict[str, Any]]:
    """The calls of an earlier answer in OpenAI's form."""
    calls = [
        _call(block.tool_call_id, block.tool_name, block.tool_kwargs)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    if calls:
        return calls
    for raw in message.additional_kwargs.get("tool_calls") or ():
        # Histories written by other integrations hold their client's own objects.
        call = raw if isinstance(raw, Mapping) else raw.model_dump()
        function = call.get("function") or {}
        calls.append(_call(call.get("id"), str(function.get("name")), function.get("arguments") or {}))
    return calls


def _call(call_id: str | None, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id or "", "type": "function", "function": {"name": name, "arguments": text}}
