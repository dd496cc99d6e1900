"""``ChatInferScale``: a LangChain chat model that resolves KV handles inside its engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any, Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from inferscale_memory.errors import InvalidInputError, PromptError
from langchain_inferscale.answers import to_chunk, to_result
from langchain_inferscale.messages import marked, to_engine
from langchain_inferscale.parameters import CONFIG, EngineParameters
from langchain_inferscale.structured import Method, structured_output

logger = logging.getLogger(__name__)

ToolLike = dict[str, Any] | type | Callable[..., Any] | BaseTool
ToolChoice = str | bool | dict[str, Any] | None


class ChatInferScale(EngineParameters, BaseChatModel):
    """A chat model whose messages may hold KV handles.

    A handle stands in a system message, as text or as a block
    ``{"type": "non_standard", "value": {"type": "kv_handle", "handle": ...}}``; or it comes as the call keyword
    ``kv_handles=[...]``; or a middleware places it beside the messages. In a *string* prompt, as classic chains make
    them, it may stand anywhere. In a human, tool or AI message it is removed unresolved: what a user types names no
    memory. No handle reaches the model or comes back.

    ``response_metadata`` of an answer has ``kv``, where its prompt tokens came from (``injected``, ``local_hit``,
    ``prefilled``, ``fallback_reason``), and ``recalled``, the facts in the prompt with the cosine of their recall;
    ``usage_metadata["input_token_details"]["cache_read"]`` are the injected tokens.

    Tools need an engine with ``enable_auto_tool_choice`` and a ``tool_call_parser`` (the demo model's has them) where
    the model chooses; ``tool_choice="any"`` or a tool's name is enforced by guided decoding, and so is
    ``with_structured_output``.

    Args:
        logprobs: return the log-probabilities of the answer's tokens, in ``response_metadata["logprobs"]``.
        top_logprobs: with so many alternatives each.
        streaming: stream inside ``invoke`` too, for callbacks that want tokens.

    Raises:
        PromptError: (calls) the prompt does not fit the model or its chat template.
        InvalidInputError: (calls) an option is not one of vLLM's, or names another model than the engine's.
        EngineError: (calls) the engine refused the request, died or took longer than ``timeout``.
    """

    model_config = CONFIG

    logprobs: bool | None = None
    top_logprobs: int | None = None
    streaming: bool = False

    # -- what LangChain asks about the model ---------------------------------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "chat-inferscale"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return cast(LangSmithParams, {"ls_model_type": "chat", **self._ls_params(stop, kwargs)})

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            name=self.model_name,
            max_input_tokens=self.engine.max_model_len,
            max_output_tokens=self.engine.max_model_len,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            tool_calling=self.engine.calls_tools,
            tool_choice=True,
            structured_output=True,
            temperature=True,
        )

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text by itself, from the model's own tokenizer."""
        return self.engine.tokenize(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None) -> int:
        """Tokens of the prompt that these messages make, with the facts behind their handles and the tools."""
        sent, handles = to_engine(messages)
        options = self._options(None, {"tools": [convert_to_openai_tool(tool) for tool in tools]} if tools else {})
        try:
            return self.engine.count_tokens(sent, **{**options, "kv_handles": handles or None})
        except PromptError as error:
            # A part of a conversation, such as one that begins with an answer, which the template refuses.
            logger.debug("counted without the chat template: %s", error)
            return sum(len(self.get_token_ids(message.text)) for message in messages)

    # -- input ---------------------------------------------------------------------------------------------------------

    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        return marked(super()._convert_input(model_input))

    def generate_prompt(self, prompts: list[PromptValue], *args: Any, **kwargs: Any) -> LLMResult:
        """As the base class does; string prompts stay known as such."""
        return super().generate_prompt([marked(prompt) for prompt in prompts], *args, **kwargs)

    async def agenerate_prompt(self, prompts: list[PromptValue], *args: Any, **kwargs: Any) -> LLMResult:
        """Async twin of ``generate_prompt``."""
        return await super().agenerate_prompt([marked(prompt) for prompt in prompts], *args, **kwargs)

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options for the engine."""
        sent, handles = to_engine(messages)
        options = self._options(stop, call, handles)
        for name in ("logprobs", "top_logprobs"):
            if getattr(self, name) is not None:
                options.setdefault(name, getattr(self, name))
        if options.get("top_logprobs") is not None:
            options.setdefault("logprobs", True)
        return sent, options

    # -- answering -----------------------------------------------------------------------------------------------------

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        sent, options = self._request(messages, stop, kwargs)
        return to_result(self.engine.chat(sent, **options), self.model_name)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        sent, options = self._request(messages, stop, kwargs)
        return to_result(await self.engine.achat(sent, **options), self.model_name)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        sent, options = self._request(messages, stop, kwargs)
        _refuse_several(options)
        # Closed here and now when the consumer leaves, not when the garbage collector comes by: closing aborts.
        with closing(self.engine.stream_chat(sent, **options)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                yield to_chunk(chunk, self.model_name)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        sent, options = self._request(messages, stop, kwargs)
        _refuse_several(options)
        async with aclosing(self.engine.astream_chat(sent, **options)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield to_chunk(chunk, self.model_name)

    # -- tools and structure -------------------------------------------------------------------------------------------

    def bind_tools(
        self, tools: Sequence[ToolLike], *, tool_choice: ToolChoice = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model.

        Args:
            tools: functions, LangChain tools, pydantic classes, TypedDicts, or OpenAI schemas.
            tool_choice: ``None`` or ``"auto"`` lets the model choose; ``"any"``, ``"required"`` or ``True`` makes it
                call one; a tool's name makes it call that one; ``"none"`` or ``False`` forbids calls.
            strict: whether guided decoding holds a call's arguments to the tool's schema. Default: where a call is
                forced; where the model chooses, vLLM leaves them to the model unless this is True.
            kwargs: more call options, such as ``parallel_tool_calls=False``.

        Raises:
            InvalidInputError: ``tool_choice`` names no tool.
        """
        schemas = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        choice = _tool_choice(tool_choice, [schema["function"]["name"] for schema in schemas])
        if choice is not None:
            kwargs["tool_choice"] = choice
        if strict is None and (choice == "required" or isinstance(choice, dict)):
            # The schema itself stays as it is: convert_to_openai_tool(strict=True) would also close it.
            schemas = [{**schema, "function": {"strict": True, **schema["function"]}} for schema in schemas]
        return super().bind(tools=schemas, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """A runnable that answers in the shape of ``schema``, which guided decoding enforces token by token.

        Args:
            schema: a pydantic class (the answer is an instance), TypedDict, JSON schema or OpenAI tool (a dict).
            method: ``"json_schema"``; ``"function_calling"``, by one forced tool call; ``"json_mode"``, any JSON
                object, with the fields named in the prompt.
            include_raw: answer ``{"raw", "parsed", "parsing_error"}``, and raise nothing.
            strict: as for ``bind_tools``; of no effect on the other methods, which vLLM always holds to the schema.
            kwargs: more call options.

        Raises:
            InvalidInputError: another method.
        """
        return structured_output(self, schema, method, include_raw=include_raw, strict=strict, call=kwargs)


def _refuse_several(options: dict[str, Any]) -> None:
    if (options.get("n") or 1) > 1:
        raise InvalidInputError(f"n={options['n']} answers cannot be streamed as one; use generate(), or n=1.")


def _tool_choice(choice: ToolChoice, names: list[str]) -> Literal["auto", "required", "none"] | dict[str, Any] | None:
    if choice is None or isinstance(choice, dict):
        return choice
    if isinstance(choice, bool):
        return "required" if choice else "none"
    if choice in ("auto", "none", "required"):
        return choice  # type: ignore[return-value]
    if choice == "any":
        return "required"
    if choice not in names:
        raise InvalidInputError(f"tool_choice is {choice!r}; wanted any, auto, none, or a tool: {', '.join(names)}.")
    return {"type": "function", "function": {"name": choice}}
