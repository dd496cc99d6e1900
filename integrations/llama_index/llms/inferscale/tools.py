"""Tools in the engine's form, and which of them the model has to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.tools.types import BaseTool

from inferscale_memory.errors import InvalidInputError

ToolChoice = str | Mapping[str, Any] | None


def tool_options(tools: Sequence[BaseTool], *, required: bool = False, choice: ToolChoice = None) -> dict[str, Any]:
    """Request fields that offer tools; none without tools.

    Args:
        tools: LlamaIndex's.
        required: the model has to call one, whichever.
        choice: ``"auto"``, ``"required"`` (or ``"any"``), ``"none"``, a tool's name, or OpenAI's form; it goes before
            ``required``.

    Raises:
        InvalidInputError: the choice names no tool, or a call is required and there are no tools.
    """
    schemas = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
    chosen = _choice(choice, [schema["function"]["name"] for schema in schemas])
    if chosen is None and required:
        chosen = "required"
    forced = chosen == "required" or isinstance(chosen, dict)
    if not schemas:
        if forced:
            raise InvalidInputError("a tool call is required, but there are no tools to call; give at least one.")
        return {}
    if forced:
        # vLLM then holds the arguments to the tool's schema; where the model chooses, they are the model's.
        schemas = [{**schema, "function": {"strict": True, **schema["function"]}} for schema in schemas]
    return {"tools": schemas, **({} if chosen is None else {"tool_choice": chosen})}


def _choice(choice: ToolChoice, names: list[str]) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, Mapping):
        return None if choice is None else dict(choice)
    if choice in ("auto", "none", "required"):
        return choice
    if choice == "any":
        return "required"
    if choice not in names:
        listed = ", ".join(names) or "(there are no tools)"
        raise InvalidInputError(f"tool_choice is {choice!r}; wanted auto, required, none, or a tool: {listed}.")
    return {"type": "function", "function": {"name": choice}}
