"""Structured output: which request fields make vLLM decode along a schema, and what parses the answer."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from inferscale_memory.errors import InvalidInputError

if TYPE_CHECKING:
    from langchain_inferscale.chat_model import ChatInferScale

Method = Literal["json_schema", "function_calling", "json_mode"]
Schema = dict[str, Any] | type


def structured_output(
    model: ChatInferScale,
    schema: Schema,
    method: Method,
    *,
    include_raw: bool,
    strict: bool | None,
    call: dict[str, Any],
) -> Runnable[Any, Any]:
    """See ``ChatInferScale.with_structured_output``."""
    told = {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": schema}}
    parser: BaseOutputParser[Any]
    bound: Runnable[Any, Any]
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        bound = model.bind_tools(
            [schema], tool_choice=name, strict=strict, parallel_tool_calls=False, **{**told, **call}
        )
        parser = _of_tool(schema, name)
    elif method in ("json_schema", "json_mode"):
        bound = model.bind(response_format=_response_format(schema, method, strict), **told, **call)
        parser = _of_json(schema)
    else:
        raise InvalidInputError(f"method is {method!r}; wanted json_schema, function_calling or json_mode.")
    return _with_raw(bound, parser) if include_raw else bound | parser


def _response_format(schema: Schema, method: Method, strict: bool | None) -> dict[str, Any]:
    if method == "json_mode":
        return {"type": "json_object"}
    wanted = convert_to_json_schema(schema)
    named = {"name": wanted.get("title") or "answer", "schema": wanted}
    return {"type": "json_schema", "json_schema": named if strict is None else {**named, "strict": strict}}


def _is_class(schema: Schema) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)


def _of_tool(schema: Schema, name: str) -> BaseOutputParser[Any]:
    if _is_class(schema):
        return PydanticToolsParser(tools=[cast(type, schema)], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def _of_json(schema: Schema) -> BaseOutputParser[Any]:
    return PydanticOutputParser(pydantic_object=cast(Any, schema)) if _is_class(schema) else JsonOutputParser()


def _with_raw(bound: Runnable[Any, Any], parser: BaseOutputParser[Any]) -> Runnable[Any, Any]:
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")
