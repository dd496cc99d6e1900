"""The OpenAI surface of the local engine: vLLM's own serving objects, with the plan put in and the accounting out."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferscale_memory import metrics
from inferscale_memory.errors import EngineError, InferScaleError, InvalidInputError, PromptError
from inferscale_memory.handles.stream import AnswerFilter, without_handles
from inferscale_memory.serving import compat
from inferscale_memory.serving.protocol import Accounting, inject_params, parse_accounting
from inferscale_memory.serving.resolve import Plan

if TYPE_CHECKING:
    from inferscale_memory.serving.engine import LocalEngine


class OpenAISide:
    """Chat and completion requests; every method runs on the engine's loop.

    Args:
        engine: whose client, planner and capturer are used.
        state: vLLM's application state (``compat.serving_state``).
    """

    def __init__(self, engine: LocalEngine, state: Any) -> None:
        self._engine = engine
        self._chat = state.openai_serving_chat
        self._completion = state.openai_serving_completion

    @property
    def chat_template(self) -> str | None:
        """The chat template the serving layer was given, ``None`` for the tokenizer's own."""
        return self._chat.chat_template

    @property
    def template_defaults(self) -> dict[str, Any]:
        """Template options of every chat (``default_chat_template_kwargs``)."""
        return dict(self._chat.default_chat_template_kwargs)

    async def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        """See ``LocalEngine.chat``."""
        async with _within(options):
            request, plan = await self._chat_request(messages, _without_timeout(options), stream=False)
            answer = await _call(self._chat.create_chat_completion(request))
        return self._with_accounting(answer.model_dump(exclude_none=True), f"chatcmpl-{request.request_id}", plan)

    async def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """See ``LocalEngine.stream_chat``."""
        async with _within(options):
            request, plan = await self._chat_request(messages, _without_timeout(options), stream=True)
            events = await _call(self._chat.create_chat_completion(request))
            async for chunk in self._chunks(events, f"chatcmpl-{request.request_id}", plan):
                yield chunk

    async def complete(self, prompt: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """See ``LocalEngine.complete``."""
        async with _within(options):
            request, plan = await self._completion_request(prompt, _without_timeout(options), stream=False)
            answer = await _call(self._completion.create_completion(request))
        return self._with_accounting(answer.model_dump(exclude_none=True), f"cmpl-{request.request_id}-0", plan)

    async def stream_complete(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """See ``LocalEngine.stream_complete``."""
        async with _within(options):
            request, plan = await self._completion_request(prompt, _without_timeout(options), stream=True)
            events = await _call(self._completion.create_completion(request))
            async for chunk in self._chunks(events, f"cmpl-{request.request_id}-0", plan):
                yield chunk

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _chat_request(
        self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any], *, stream: bool
    ) -> tuple[Any, Plan]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        self._check_model(options)
        plan = await self._engine.preparer.chat(messages, options)
        sent = plan.cleaned if plan.cleaned is not None else [dict(message) for message in messages]
        fields = {**_fields(options, stream=stream), "messages": sent, "model": self._engine.model}
        if plan.salt is not None:
            # vLLM takes forwarded token ids in place of rendering the messages; tools and parsers still apply.
            await self._engine.capturer.ensure(plan)
            fields["kv_transfer_params"] = {"prompt_token_ids": plan.token_ids, **inject_params(plan.inject)}
            fields["cache_salt"] = plan.salt
        return _validated(ChatCompletionRequest, fields), plan

    async def _completion_request(self, prompt: str, options: dict[str, Any], *, stream: bool) -> tuple[Any, Plan]:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self._check_model(options)
        plan = await self._engine.preparer.text(prompt, options)
        fields = {**_fields(options, stream=stream), "model": self._engine.model}
        fields["prompt"] = plan.cleaned if plan.cleaned is not None else prompt
        if plan.salt is not None:
            await self._engine.capturer.ensure(plan)
            fields.update(prompt=plan.token_ids, cache_salt=plan.salt, kv_transfer_params=inject_params(plan.inject))
        return _validated(CompletionRequest, fields), plan

    def _check_model(self, options: Mapping[str, Any]) -> None:
        """An OpenAI client names the model; this engine has one."""
        wanted = options.get("model")
        if wanted is not None and wanted != self._engine.model:
            raise InvalidInputError(
                f"this engine serves {self._engine.model!r}, the request names {wanted!r}; leave model out or start "
                "an engine with that one."
            )

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _chunks(self, events: Any, request_id: str, plan: Plan) -> AsyncGenerator[dict[str, Any], None]:
        last: dict[str, Any] | None = None
        handles = AnswerFilter()
        try:
            async for event in events:
                body = event.removeprefix("data: ").strip()
                if body == "[DONE]":
                    break
                chunk = json.loads(body)
                if "error" in chunk:
                    raise EngineError(f"vLLM refused the request: {chunk['error'].get('message', chunk['error'])}")
                if last is not None:
                    yield last
                last = handles.clean(chunk)
            if last is not None:
                yield self._with_accounting(last, request_id, plan)
        finally:
            await events.aclose()

    def _with_accounting(self, answer: dict[str, Any], request_id: str, plan: Plan) -> dict[str, Any]:
        found = self._engine.client.finished.pop(request_id, None) or (None, 0, 0)
        accounting = accounting_of(*found)
        if plan.salt is not None:
            self._engine.settle(plan, accounting)
            accounting = replace(accounting, fallback_reason=plan.reason or accounting.fallback_reason)
        metrics.INJECTED_TOKENS.inc(accounting.injected)
        metrics.LOCAL_HIT_TOKENS.inc(accounting.local_hit)
        metrics.PREFILLED_TOKENS.inc(accounting.prefilled)
        if accounting.fallback_reason:
            metrics.FALLBACKS.labels(accounting.fallback_reason.split(":")[0]).inc()
        answer.pop("kv_transfer_params", None)
        answer["kv"] = accounting.as_dict()
        answer["recalled"] = [{"id": fact_id, "score": score} for fact_id, score in plan.recalled]
        return without_handles(answer)


def accounting_of(params: Mapping[str, Any] | None, cached: int, prompt: int) -> Accounting:
    """Accounting of a finished request: the connector's, or for a request it did not see, from vLLM's own count.

    Args:
        params: the ``kv_transfer_params`` it came back with.
        cached: vLLM's ``num_cached_tokens``.
        prompt: prompt tokens.
    """
    return parse_accounting(params) or Accounting(0, cached, prompt - cached, None)


@asynccontextmanager
async def _within(options: Mapping[str, Any]) -> AsyncIterator[None]:
    """The call's ``timeout`` in seconds: after it the request is aborted."""
    seconds = options.get("timeout")
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise InvalidInputError(f"timeout is {seconds!r}; wanted seconds, more than 0, or None to wait for ever.")
    limit = asyncio.timeout(None if seconds is None else float(seconds))
    try:
        async with limit:
            yield
    except (TimeoutError, EngineError) as error:
        # vLLM takes the cancellation for a client that went away, and answers with an error.
        if not limit.expired():
            raise
        raise EngineError(f"no whole answer within {seconds} s; the request was aborted. Allow more time.") from error


def _without_timeout(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "timeout"}


async def _call(work: Any) -> Any:
    """Await one of vLLM's serving calls, with its errors as this library's."""
    try:
        answer = await work
    except InferScaleError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"vLLM refused the request: {error}") from error
    except Exception as error:
        if compat.is_too_long(error):
            raise PromptError(f"the prompt does not fit the model: {error}") from error
        if compat.is_callers_mistake(error):
            raise InvalidInputError(f"vLLM refused the request: {error}") from error
        raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
    problem = getattr(answer, "error", None)
    if problem is not None:
        raise EngineError(f"vLLM refused the request: {getattr(problem, 'message', problem)}")
    return answer


def _validated(kind: Any, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except Exception as error:  # pydantic's, or vLLM's own, which is no ValueError
        raise InvalidInputError(f"the request is not valid: {error}") from error


def _fields(options: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    fields = {name: value for name, value in options.items() if value is not None}
    fields["request_id"] = secrets.token_hex(16)
    fields["stream"] = stream
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return fields
