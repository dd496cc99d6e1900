"""Structured prediction: vLLM decodes along the JSON schema of a class, token by token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any

from llama_index.core.base.llms.generic_utils import chat_response_to_completion_response
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events.llm import (
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictInProgressEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.program.utils import process_streaming_objects
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.types import Model, PydanticProgramMode
from pydantic import BaseModel, ValidationError

from inferscale_memory.errors import InvalidInputError
from llama_index.llms.inferscale.messages import StringPrompt, formatted, is_string_template, marked

dispatcher = get_dispatcher(__name__)

# What the programs of other LLMs are passed, and drop too.
_OF_TOOLS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")

LLMKwargs = dict[str, Any] | None


class GuidedPrediction(FunctionCallingLLM):
    """``structured_predict`` and its kin by guided decoding, unless ``pydantic_program_mode`` names another way."""

    @property
    def _guides(self) -> bool:
        return self.pydantic_program_mode == PydanticProgramMode.DEFAULT

    def _asked(self, prompt: BasePromptTemplate, prompt_args: dict[str, Any]) -> list[ChatMessage]:
        return self._extend_messages(formatted(prompt, self, prompt_args))

    @dispatcher.span
    def structured_predict(
        self, output_cls: type[Model], prompt: BasePromptTemplate, llm_kwargs: LLMKwargs = None, **prompt_args: Any
    ) -> Model:
        """An instance of ``output_cls``, which the engine is held to while it answers.

        The model is not shown the schema: what it should know of the fields belongs into the prompt, or is shown with
        ``pydantic_program_mode="function"``, which forces a tool call.

        Raises:
            InvalidInputError: the answer was cut, or a validator that no JSON schema can state refuses it.
        """
        if not self._guides:
            return super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _started(output_cls, prompt, prompt_args)
        response = self.chat(self._asked(prompt, prompt_args), **guided(output_cls, llm_kwargs))
        return _ended(parsed(response, output_cls))

    @dispatcher.span
    async def astructured_predict(
        self, output_cls: type[Model], prompt: BasePromptTemplate, llm_kwargs: LLMKwargs = None, **prompt_args: Any
    ) -> Model:
        """Async twin of ``structured_predict``."""
        if not self._guides:
            return await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _started(output_cls, prompt, prompt_args)
        response = await self.achat(self._asked(prompt, prompt_args), **guided(output_cls, llm_kwargs))
        return _ended(parsed(response, output_cls))

    @dispatcher.span
    def stream_structured_predict(
        self, output_cls: type[Model], prompt: BasePromptTemplate, llm_kwargs: LLMKwargs = None, **prompt_args: Any
    ) -> Generator[Any, None, None]:
        """Instances as far as they are known, fields that are not yet there left out; the last one is whole."""
        if not self._guides:
            yield from super().stream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return
        _started(output_cls, prompt, prompt_args)
        growing = _Growing(output_cls)
        responses = self.stream_chat(self._asked(prompt, prompt_args), **guided(output_cls, llm_kwargs))
        with closing(responses):
            for response in responses:
                if (partial := growing.add(response)) is not None:
                    yield partial
        yield growing.whole()

    @dispatcher.span
    async def astream_structured_predict(
        self, output_cls: type[Model], prompt: BasePromptTemplate, llm_kwargs: LLMKwargs = None, **prompt_args: Any
    ) -> AsyncGenerator[Any, None]:
        """Async twin of ``stream_structured_predict``."""
        if not self._guides:
            return await super().astream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)

        async def grow() -> AsyncGenerator[Any, None]:
            _started(output_cls, prompt, prompt_args)
            growing = _Growing(output_cls)
            messages = self._asked(prompt, prompt_args)
            responses = await self.astream_chat(messages, **guided(output_cls, llm_kwargs))
            async with aclosing(responses):
                async for response in responses:
                    if (partial := growing.add(response)) is not None:
                        yield partial
            yield growing.whole()

        return grow()

    def as_structured_llm(self, output_cls: type[BaseModel], **kwargs: Any) -> StructuredLLM:
        """An LLM whose every answer is an ``output_cls`` (``response.raw``); string prompts stay known as such."""
        return GuidedLLM(llm=self, output_cls=output_cls, **kwargs)


class GuidedLLM(StructuredLLM):
    """LlamaIndex's structured LLM, with handles resolved in string prompts."""

    def _get_messages(self, prompt: BasePromptTemplate, **prompt_args: Any) -> list[ChatMessage]:
        messages = super()._get_messages(prompt, **prompt_args)
        return marked(messages) if is_string_template(prompt, self.llm) else messages

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a string prompt with one instance, as JSON."""
        return chat_response_to_completion_response(self.chat([StringPrompt.from_str(prompt)], **kwargs))

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Async twin of ``complete``."""
        return chat_response_to_completion_response(await self.achat([StringPrompt.from_str(prompt)], **kwargs))


def guided(output_cls: type[BaseModel], llm_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Request fields that hold an answer to the schema of ``output_cls``."""
    call = {name: value for name, value in (llm_kwargs or {}).items() if name not in _OF_TOOLS}
    schema = {"name": output_cls.__name__, "schema": output_cls.model_json_schema()}
    return {**call, "response_format": {"type": "json_schema", "json_schema": schema}}


def parsed(response: ChatResponse, output_cls: type[Model]) -> Model:
    """The answer as an instance.

    Raises:
        InvalidInputError: it was cut, or a validator that no JSON schema can state refuses it.
    """
    text = response.message.content or ""
    try:
        return output_cls.model_validate_json(text)
    except ValidationError as error:
        if response.additional_kwargs.get("finish_reason") == "length":
            raise InvalidInputError(
                f"the answer was cut before its {output_cls.__name__} was whole: {text[-60:]!r}. Allow more "
                "max_tokens, or state lengths in the schema."
            ) from error
        raise InvalidInputError(f"the answer is no {output_cls.__name__}: {error}") from error


class _Growing:
    """An instance that becomes whole while it is streamed."""

    def __init__(self, output_cls: type[BaseModel]) -> None:
        self._class = output_cls
        self._objects: list[Any] | None = None
        self._last = ChatResponse(message=ChatMessage())

    def add(self, response: ChatResponse) -> Any:
        """What is known with this response; None where it brings nothing."""
        self._last = response
        if not response.delta:
            return None
        found = process_streaming_objects(response, self._class, self._objects, flexible_mode=True)
        self._objects = [found]
        dispatcher.event(LLMStructuredPredictInProgressEvent(output=found))
        return found

    def whole(self) -> Any:
        """The instance; raises as ``parsed`` does."""
        return _ended(parsed(self._last, self._class))


def _started(output_cls: type[BaseModel], prompt: BasePromptTemplate, prompt_args: dict[str, Any]) -> None:
    event = LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=prompt_args)
    dispatcher.event(event)


def _ended(output: Model) -> Model:
    dispatcher.event(LLMStructuredPredictEndEvent(output=output))
    return output
