"""From the engine's answers (OpenAI's, as dicts) to LangChain's messages, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call, tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from langchain_inferscale.parameters import PROVIDER


def metadata_of(answer: Mapping[str, Any], model: str) -> dict[str, Any]:
    """What ``response_metadata`` says of an answer: model, where its prompt tokens came from, what was recalled."""
    return {
        "model_name": model,
        "model_provider": PROVIDER,
        "kv": dict(answer["kv"]),
        "recalled": [dict(fact) for fact in answer.get("recalled", ())],
    }


def usage_of(answer: Mapping[str, Any]) -> UsageMetadata | None:
    """Tokens of an answer; ``cache_read`` are the injected ones, which nobody had to compute."""
    usage = answer.get("usage")
    if not usage:
        return None
    said, read = usage.get("completion_tokens") or 0, usage.get("prompt_tokens") or 0
    return UsageMetadata(
        input_tokens=read,
        output_tokens=said,
        total_tokens=read + said,
        input_token_details=InputTokenDetails(cache_read=answer["kv"]["injected"]),
    )


def to_result(answer: Mapping[str, Any], model: str) -> ChatResult:
    """A whole answer, one generation per choice."""
    generations = []
    for choice in answer["choices"]:
        said = choice["message"]
        calls, broken = _tool_calls(said)
        message = AIMessage(
            content=said.get("content") or "",
            additional_kwargs=_reasoning(said),
            tool_calls=calls,
            invalid_tool_calls=broken,
            usage_metadata=usage_of(answer),
            response_metadata={**metadata_of(answer, model), **_ending(choice)},
        )
        generations.append(ChatGeneration(message=message, generation_info=_ending(choice)))
    return ChatResult(generations=generations)


def to_chunk(chunk: Mapping[str, Any], model: str) -> ChatGenerationChunk:
    """One chunk of a stream; the last one, which holds ``"kv"``, carries usage and metadata."""
    choice: Mapping[str, Any] = next(iter(chunk.get("choices", ())), {})
    said = choice.get("delta") or {}
    last = "kv" in chunk
    message = AIMessageChunk(
        content=said.get("content") or "",
        additional_kwargs=_reasoning(said),
        tool_call_chunks=[_tool_call_chunk(call) for call in said.get("tool_calls") or ()],
        usage_metadata=usage_of(chunk) if last else None,
        response_metadata=metadata_of(chunk, model) if last else {},
        chunk_position="last" if last else None,
    )
    return ChatGenerationChunk(message=message, generation_info=_ending(choice) or None)


def _ending(choice: Mapping[str, Any]) -> dict[str, Any]:
    names = ("finish_reason", "stop_reason", "logprobs")
    return {name: choice[name] for name in names if choice.get(name) is not None}


def _reasoning(said: Mapping[str, Any]) -> dict[str, Any]:
    thought = said.get("reasoning") or said.get("reasoning_content")
    return {"reasoning_content": thought} if thought else {}


def _tool_calls(said: Mapping[str, Any]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    calls: list[ToolCall] = []
    broken: list[InvalidToolCall] = []
    for raw in said.get("tool_calls") or ():
        try:
            parsed = parse_tool_call(raw, return_id=True)
        except OutputParserException as error:
            broken.append(make_invalid_tool_call(raw, str(error)))
        else:
            if parsed is not None:
                calls.append(tool_call(name=parsed["name"], args=parsed["args"], id=parsed["id"]))
    return calls, broken


def _tool_call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    function = call.get("function") or {}
    return tool_call_chunk(
        name=function.get("name"), args=function.get("arguments"), id=call.get("id"), index=call.get("index")
    )
