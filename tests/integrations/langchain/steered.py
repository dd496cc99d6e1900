"""The real engine, held to a stated schema or regex where a test of tools wants an answer that 135M parameters miss.

Nothing is replaced: the request goes through ``ChatInferScale`` and the engine, and vLLM's guided decoding follows the
schema. Only requests that already ask for a tool call or a JSON answer are steered.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from langchain_core.messages import BaseMessage

from langchain_inferscale import ChatInferScale

GUIDED_TOKENS = 80
"""Room for a guided answer; a free one has 16 tokens."""
WORDS = 12
"""Longest string in a guided JSON answer, in characters."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "magic_function": {"input": 3},
    "my_adder_tool": {"a": 3, "b": 4},
    "get_weather": {"location": "San Francisco, CA"},
    "greeting_generator": {"answer_style": "Pirate"},
}
_QUOTED = re.compile(r"'([^']*)'")


class SteeredChat(ChatInferScale):
    """Pins the arguments of forced tool calls, the one call of the agent loop, and the length of JSON strings."""

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        sent, options = super()._request(messages, stop, call)
        question = sent[-1].get("content") or ""
        if options.get("tools") and options.get("tool_choice") not in (None, "auto", "none"):
            options["tools"] = [_pinned(tool, question) for tool in options["tools"]]
            options.update(parallel_tool_calls=False, max_tokens=GUIDED_TOKENS)
        elif options.get("tools") and sent[-1]["role"] == "user" and "weather" in question:
            options.update(structured_outputs={"regex": _weather_call()}, max_tokens=GUIDED_TOKENS)
        elif options.get("response_format"):
            options.update(response_format=_short(options["response_format"]), max_tokens=GUIDED_TOKENS)
        return sent, options


def _pinned(tool: dict[str, Any], question: str) -> dict[str, Any]:
    """The tool with every argument's value stated in its schema."""
    tool = copy.deepcopy(tool)
    function = tool["function"]
    values = dict(ARGUMENTS.get(function["name"], {}))
    if function["name"] == "unicode_customer":
        found = _QUOTED.search(question)
        assert found is not None, question
        values = {"customer_name": found.group(1), "description": "company"}
    if not function["parameters"].get("properties"):
        # Greedy decoding would fill an empty object with line breaks for ever.
        function["parameters"] = {"const": {}}
        return tool
    for name, schema in function["parameters"]["properties"].items():
        schema.pop("default", None)
        schema["const"] = values[name]
    return tool


def _weather_call() -> str:
    return r'<tool_call>\n\{"name": "get_weather", "arguments": \{"location": "San Francisco, CA"\}\}\n</tool_call>'


def _short(wanted: dict[str, Any]) -> dict[str, Any]:
    """JSON whose strings end soon; of any JSON object (``json_mode``), one with the two keys the prompt asks for."""
    if wanted["type"] == "json_object":
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"setup": {"type": "string"}, "punchline": {"type": "string"}},
            "required": ["setup", "punchline"],
        }
    else:
        schema = copy.deepcopy(wanted["json_schema"]["schema"])
    for part in schema["properties"].values():
        for kind in part.get("anyOf", [part]):
            if kind.get("type") == "string":
                kind["maxLength"] = WORDS
    schema["additionalProperties"] = False
    return {"type": "json_schema", "json_schema": {"name": "short", "schema": schema}}
