"""``InferScale``: a LlamaIndex LLM that resolves KV handles inside its engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span import active_span_id
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.tools.types import BaseTool

from inferscale_memory.errors import InvalidInputError, PromptError
from llama_index.llms.inferscale.answers import ChatSoFar, TextSoFar, to_completion, tool_calls_of
from llama_index.llms.inferscale.events import InferScaleRecallEvent
from llama_index.llms.inferscale.messages import StringPrompt, is_string_template, marked, to_engine
from llama_index.llms.inferscale.parameters import CONFIG, EngineParameters
from llama_index.llms.inferscale.streams import areported, reported
from llama_index.llms.inferscale.structured import GuidedPrediction
from llama_index.llms.inferscale.tools import tool_options

logger = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)


class InferScale(EngineParameters, GuidedPrediction):
    """A chat LLM whose messages may hold KV handles.

    A handle stands in a system message, or comes as the call keyword ``kv_handles=[...]``. In a *string* prompt, which
    is ``complete(prompt)`` and ``predict(PromptTemplate(...))``, it may stand anywhere. In a user, tool or assistant
    message of a chat it is removed unresolved: what a user types names no memory. No handle reaches the model or comes
    back.

    ``additional_kwargs`` of a response has ``kv``, where its prompt tokens came from (``injected``, ``local_hit``,
    ``prefilled``, ``fallback_reason``), ``recalled``, the facts in the prompt with the cosine of their recall,
    ``finish_reason`` and the token counts; ``raw`` is the engine's answer. An ``InferScaleRecallEvent`` goes to the
    instrumentation with every answer.

    ``complete`` sends the prompt as one user message, as LlamaIndex's other chat LLMs do; ``formatted=True`` says that
    it is formatted for the model already, and has it continued as it stands.

    Args:
        engine: a ``LocalEngine``, or whatever keeps ``AnsweringEngine``'s contract. It is the caller's to close.
        temperature: 0 is greedy; None leaves it to the model's own default.
        top_p: nucleus sampling.
        max_tokens: longest answer, in tokens.
        stop: strings that end an answer.
        seed: makes sampling repeatable.
        timeout: seconds after which a request is aborted and ``EngineError`` raised.
        additional_kwargs: more request fields, OpenAI's or vLLM's, such as ``{"structured_outputs": {"regex": ...}}``.
        user_id: with the other ids: refuse handles of another scope. A call's keywords go before these.
        agent_id: see ``user_id``.
        session_id: see ``user_id``.
        tenant_id: see ``user_id``.

    Raises:
        PromptError: (calls) the prompt does not fit the model or its chat template.
        InvalidInputError: (calls) an option is not one of vLLM's, or a message holds more than text.
        EngineError: (calls) the engine refused the request, died or took longer than ``timeout``.
    """

    model_config = CONFIG

    # -- what LlamaIndex asks about the model --------------------------------------------------------------------------

    @classmethod
    def class_name(cls) -> str:
        """Name of this class in serialised form."""
        return "inferscale_llm"

    @property
    def model(self) -> str:
        """The engine's model."""
        return self.engine.model

    @property
    def metadata(self) -> LLMMetadata:
        """What the engine and this LLM's settings say."""
        window = self.engine.max_model_len
        return LLMMetadata(
            context_window=window,
            num_output=min(self.max_tokens or DEFAULT_NUM_OUTPUTS, window),
            is_chat_model=True,
            is_function_calling_model=self.engine.calls_tools,
            model_name=self.engine.model,
        )

    def tokenizer(self, text: str) -> list[int]:
        """Token ids of a text by itself; for ``Settings.tokenizer = llm.tokenizer``, ``token_counter`` and splitters.

        Without it LlamaIndex counts with another model's tokenizer.
        """
        return self.engine.tokenize(text)

    def count_tokens(self, messages: Sequence[ChatMessage], tools: Sequence[BaseTool] = (), **kwargs: Any) -> int:
        """Tokens of the prompt that these messages make, with the facts behind their handles and the tools."""
        sent, handles = to_engine(messages)
        try:
            return self.engine.count_tokens(sent, **self._options({**kwargs, **tool_options(tools)}, handles))
        except PromptError as error:
            # A part of a conversation, such as one that begins with an answer, which the template refuses.
            logger.debug("counted without the chat template: %s", error)
            return sum(len(self.tokenizer(message["content"])) for message in sent)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _get_messages(self, prompt: BasePromptTemplate, **prompt_args: Any) -> list[ChatMessage]:
        """The messages of a template; of a string template, known as what they are."""
        messages = super()._get_messages(prompt, **prompt_args)
        return marked(messages) if is_string_template(prompt, self) else messages

    def _request(
        self, messages: Sequence[ChatMessage], call: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options for the engine."""
        sent, handles = to_engine(messages)
        return sent, self._options(call, handles)

    def _tell(self, answer: Mapping[str, Any], span_id: str | None) -> None:
        """Tell the instrumentation of an answer that is whole."""
        if "kv" in answer:
            recalled = [dict(fact) for fact in answer.get("recalled", ())]
            event = InferScaleRecallEvent(model=self.model, kv=dict(answer["kv"]), recalled=recalled, span_id=span_id)
            dispatcher.event(event)

    # -- chat ----------------------------------------------------------------------------------------------------------

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation; keywords are more request fields, ``kv_handles`` and the scope."""
        return self._chat(messages, kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Async twin of ``chat``."""
        return await self._achat(messages, kwargs)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation as it grows; closing the stream aborts the request."""
        source = self._stream_chat(messages, kwargs, active_span_id.get())
        return reported(llm_chat_callback, source, self, messages, kwargs)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Async twin of ``stream_chat``."""
        source = self._astream_chat(messages, kwargs, active_span_id.get())
        return await areported(llm_chat_callback, source, self, messages, kwargs)

    def _chat(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> ChatResponse:
        sent, options = self._request(messages, call)
        answer = self.engine.chat(sent, **options)
        self._tell(answer, active_span_id.get())
        return ChatSoFar().add(answer).model_copy(update={"delta": None})

    async def _achat(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> ChatResponse:
        sent, options = self._request(messages, call)
        answer = await self.engine.achat(sent, **options)
        self._tell(answer, active_span_id.get())
        return ChatSoFar().add(answer).model_copy(update={"delta": None})

    def _stream_chat(
        self, messages: Sequence[ChatMessage], call: Mapping[str, Any], span_id: str | None
    ) -> ChatResponseGen:
        sent, options = self._request(messages, call)
        answer = ChatSoFar()
        with closing(self.engine.stream_chat(sent, **options)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                self._tell(chunk, span_id)
                yield answer.add(chunk)

    async def _astream_chat(
        self, messages: Sequence[ChatMessage], call: Mapping[str, Any], span_id: str | None
    ) -> ChatResponseAsyncGen:
        sent, options = self._request(messages, call)
        answer = ChatSoFar()
        async with aclosing(self.engine.astream_chat(sent, **options)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                self._tell(chunk, span_id)
                yield answer.add(chunk)

    # -- completion ----------------------------------------------------------------------------------------------------

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a string prompt; handles in it are resolved wherever they stand.

        Args:
            prompt: sent as one user message.
            formatted: it is formatted for the model already: continue it as it stands, without a chat template.
            kwargs: more request fields, ``kv_handles`` and the scope.
        """
        if not formatted:
            return to_completion(self._chat([StringPrompt.from_str(prompt)], kwargs))
        answer = self.engine.complete(prompt, **self._options(kwargs))
        self._tell(answer, active_span_id.get())
        return TextSoFar().add(answer).model_copy(update={"delta": None})

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Async twin of ``complete``."""
        if not formatted:
            return to_completion(await self._achat([StringPrompt.from_str(prompt)], kwargs))
        answer = await self.engine.acomplete(prompt, **self._options(kwargs))
        self._tell(answer, active_span_id.get())
        return TextSoFar().add(answer).model_copy(update={"delta": None})

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """As ``complete``, while the answer grows; closing the stream aborts the request."""
        answers = self._stream_complete if formatted else self._stream_answer
        source = answers(prompt, kwargs, active_span_id.get())
        return reported(llm_completion_callback, source, self, prompt, {"formatted": formatted, **kwargs})

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Async twin of ``stream_complete``."""
        answers = self._astream_complete if formatted else self._astream_answer
        source = answers(prompt, kwargs, active_span_id.get())
        return await areported(llm_completion_callback, source, self, prompt, {"formatted": formatted, **kwargs})

    def _stream_answer(self, prompt: str, call: Mapping[str, Any], span_id: str | None) -> CompletionResponseGen:
        with closing(self._stream_chat([StringPrompt.from_str(prompt)], call, span_id)) as responses:
            yield from map(to_completion, responses)

    async def _astream_answer(
        self, prompt: str, call: Mapping[str, Any], span_id: str | None
    ) -> CompletionResponseAsyncGen:
        async with aclosing(self._astream_chat([StringPrompt.from_str(prompt)], call, span_id)) as responses:
            async for response in responses:
                yield to_completion(response)

    def _stream_complete(self, prompt: str, call: Mapping[str, Any], span_id: str | None) -> CompletionResponseGen:
        answer = TextSoFar()
        with closing(self.engine.stream_complete(prompt, **self._options(call))) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                self._tell(chunk, span_id)
                yield answer.add(chunk)

    async def _astream_complete(
        self, prompt: str, call: Mapping[str, Any], span_id: str | None
    ) -> CompletionResponseAsyncGen:
        answer = TextSoFar()
        chunks: Any = self.engine.astream_complete(prompt, **self._options(call))
        async with aclosing(chunks):
            async for chunk in chunks:
                self._tell(chunk, span_id)
                yield answer.add(chunk)

    # -- tools ---------------------------------------------------------------------------------------------------------

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Keywords of a chat that offers tools; a forced call is held to the tool's schema by guided decoding."""
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg)
        offered = tool_options(tools, required=tool_required, choice=tool_choice)
        if offered:
            offered["parallel_tool_calls"] = allow_parallel_tool_calls
        return {"messages": messages, **offered, **kwargs}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tool calls of an answer; of one that is still being streamed, as far as they are known.

        Raises:
            InvalidInputError: there is none and ``error_on_no_tool_call``, or an answer has ended in the middle of one.
        """
        calls = tool_calls_of(response)
        if error_on_no_tool_call and not calls:
            said = (response.message.content or "")[:80]
            raise InvalidInputError(
                f"the answer calls no tool: {said!r}. Pass tool_required=True, or error_on_no_tool_call=False."
            )
        return calls
