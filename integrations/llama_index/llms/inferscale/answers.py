"""From the engine's answers (OpenAI's) to LlamaIndex's responses, whole and as they grow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ContentBlock,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.utils import parse_partial_json

from inferscale_memory.errors import InvalidInputError


class ChatSoFar:
    """An answer that grows chunk by chunk; a whole one is a single chunk with a ``message`` instead of a ``delta``."""

    def __init__(self) -> None:
        self._text = ""
        self._thought = ""
        self._calls: dict[int, dict[str, str]] = {}
        self._known: dict[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> ChatResponse:
        """The answer up to and including this chunk, as objects of its own."""
        choice: Mapping[str, Any] = next(iter(chunk.get("choices", ())), {})
        said = choice.get("delta") or choice.get("message") or {}
        delta = said.get("content") or ""
        thought = said.get("reasoning") or said.get("reasoning_content") or ""
        self._text += delta
        self._thought += thought
        for at, call in enumerate(said.get("tool_calls") or ()):
            self._add_call(call.get("index", at), call)
        self._known |= info_of(chunk, choice)
        extra = dict(self._known)
        if thought and "delta" in choice:
            extra["thinking_delta"] = thought
        return ChatResponse(
            message=self._message(whole="kv" in chunk),
            delta=delta,
            raw=dict(chunk),
            logprobs=_logprobs(choice),
            additional_kwargs=extra,
        )

    def _add_call(self, index: int, call: Mapping[str, Any]) -> None:
        function = call.get("function") or {}
        known = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        known["id"] = call.get("id") or known["id"]
        known["name"] = function.get("name") or known["name"]
        known["arguments"] += function.get("arguments") or ""

    def _message(self, *, whole: bool) -> ChatMessage:
        calls = [call for _, call in sorted(self._calls.items()) if call["name"]]
        blocks: list[ContentBlock] = []
        if self._thought:
            blocks.append(ThinkingBlock(content=self._thought))
        if self._text or not calls:
            blocks.append(TextBlock(text=self._text))
        blocks += [
            ToolCallBlock(
                tool_call_id=call["id"],
                tool_name=call["name"],
                tool_kwargs=_arguments(call["arguments"]) if whole else call["arguments"],
            )
            for call in calls
        ]
        # Chat engines and structured programs look for calls here; agents look at the blocks.
        listed = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
        return ChatMessage(
            role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs={"tool_calls": listed} if listed else {}
        )


class TextSoFar:
    """A raw completion that grows chunk by chunk."""

    def __init__(self) -> None:
        self._text = ""
        self._known: dict[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> CompletionResponse:
        """The text up to and including this chunk."""
        choice: Mapping[str, Any] = next(iter(chunk.get("choices", ())), {})
        delta = choice.get("text") or ""
        self._text += delta
        self._known |= info_of(chunk, choice)
        return CompletionResponse(text=self._text, delta=delta, raw=dict(chunk), additional_kwargs=dict(self._known))


def to_completion(response: ChatResponse) -> CompletionResponse:
    """The chat answer to a string prompt, as its completion."""
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        logprobs=response.logprobs,
        additional_kwargs=response.additional_kwargs,
    )


def info_of(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """What ``additional_kwargs`` of a response says: accounting, recalled facts, tokens, and why the answer ended."""
    found: dict[str, Any] = {}
    if choice.get("finish_reason"):
        found["finish_reason"] = choice["finish_reason"]
    if "kv" in answer:
        found["kv"] = dict(answer["kv"])
        found["recalled"] = [dict(fact) for fact in answer.get("recalled", ())]
    usage = answer.get("usage") or {}
    if usage:
        read, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        found |= {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
    return found


def tool_calls_of(response: ChatResponse) -> list[ToolSelection]:
    """The tool calls of an answer; of one that is still being streamed, as far as their arguments are known.

    Raises:
        InvalidInputError: the answer has ended and was cut, or a call's arguments are no JSON object: nothing is run
            with half of its arguments.
    """
    blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
    told = response.additional_kwargs
    if blocks and "kv" in told and told.get("finish_reason") == "length":
        # What is missing of a streamed call vLLM makes up, so the arguments do not show that it was cut.
        raise InvalidInputError(
            f"the answer was cut at {told.get('completion_tokens')} tokens, while it called {blocks[-1].tool_name!r}; "
            "no tool is run with half of its arguments. Allow more max_tokens."
        )
    return [
        ToolSelection(
            tool_id=block.tool_call_id or "",
            tool_name=block.tool_name,
            tool_kwargs=_kwargs(block, ended="kv" in told),
        )
        for block in blocks
    ]


def _kwargs(block: ToolCallBlock, *, ended: bool) -> dict[str, Any]:
    arguments = _arguments(block.tool_kwargs) if isinstance(block.tool_kwargs, str) else block.tool_kwargs
    if isinstance(arguments, dict):
        return arguments
    if ended:
        raise InvalidInputError(
            f"the call of {block.tool_name!r} has {arguments[:80]!r} for arguments; wanted a JSON object. Force the "
            "call with tool_required=True, which holds it to the tool's schema."
        )
    try:
        partial = parse_partial_json(arguments)
    except ValueError:
        return {}
    return partial if isinstance(partial, dict) else {}


def _arguments(text: str) -> dict[str, Any] | str:
    """Arguments as an object, or as they stand where they are not one; no text is no arguments."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _logprobs(choice: Mapping[str, Any]) -> list[list[LogProb]] | None:
    """Per token of the answer its alternatives, or the token itself where none were asked for."""
    content = (choice.get("logprobs") or {}).get("content")
    if not content:
        return None
    return [[_logprob(one) for one in token.get("top_logprobs") or [token]] for token in content]


def _logprob(token: Mapping[str, Any]) -> LogProb:
    return LogProb(token=token["token"], logprob=token["logprob"], bytes=token.get("bytes") or [])
