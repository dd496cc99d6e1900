"""``LocalEngine``: a vLLM engine in this machine that resolves handles, for sync code, async code and notebooks."""

from __future__ import annotations

import json
import logging
import secrets as token_source
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from inferscale_memory import metrics
from inferscale_memory.config import Settings, load_settings
from inferscale_memory.errors import EngineError, InferScaleError, InvalidInputError, PromptError
from inferscale_memory.models import resolve_model
from inferscale_memory.prompt import PromptBuilder
from inferscale_memory.scope import DEFAULT_TENANT, Scope
from inferscale_memory.serving import client as vllm_client
from inferscale_memory.serving import compat, warmup
from inferscale_memory.serving.capture import Capturer
from inferscale_memory.serving.identity import engine_fingerprint
from inferscale_memory.serving.loop import LoopThread
from inferscale_memory.serving.prepare import Preparer
from inferscale_memory.serving.protocol import (
    Accounting,
    CaptureResult,
    CaptureSpan,
    inject_params,
    parse_accounting,
)
from inferscale_memory.serving.resolve import HandleResolver, Plan
from inferscale_memory.serving.support import SupportReport, refuse_config

logger = logging.getLogger(__name__)

SCOPE_OPTIONS = ("user_id", "agent_id", "session_id", "tenant_id")


class LocalEngine:
    """A vLLM engine whose prompts may hold KV handles.

    Usable from sync code (``chat``), async code (``achat``) and notebooks; every method has a streaming form. Answers
    are OpenAI-shaped dicts with one more key, ``"kv"``: ``{injected, local_hit, prefilled, fallback_reason}`` tokens.

    Args:
        model: a demo model (``"demo"``), a Hugging Face folder or a hub id. Default: ``INFERSCALE_MODEL``.
        home: folder of models and memory; default from the settings. Must be the memory's own for injection.
        in_process: run the engine core in this process (for debugging). The default runs it in processes of its own,
            so a script needs an ``if __name__ == "__main__":`` guard.
        inject: ``False`` starts a plain engine: handles are still resolved, their facts are prefilled.
        require_scope: refuse a prompt that holds a handle unless the call names the scope (``user_id=`` ...).
        pool_bytes: memory tier of each worker; default from the settings.
        options: vLLM's own engine and chat-serving options, such as ``max_model_len``, ``enforce_eager``,
            ``chat_template``, ``tool_call_parser``.

    Raises:
        ModelError: the model cannot be loaded.
        EngineError: the engine did not start.
        MissingExtraError: vLLM is not installed.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        home: str | Path | None = None,
        in_process: bool = False,
        inject: bool = True,
        require_scope: bool = False,
        pool_bytes: int | None = None,
        **options: Any,
    ) -> None:
        vllm_client.refuse_respawn()
        compat.quiet_logging()
        self.settings: Settings = load_settings(home)
        self.model = str(model or self.settings.model)
        self.require_scope = require_scope
        self._resolver: HandleResolver | None = None
        self._closed = False
        path = resolve_model(self.model, home=self.settings.home)
        frontend, backend = _split_options(options)
        backend.setdefault("max_logprobs", -1)
        backend.setdefault("disable_log_stats", True)
        if in_process:
            backend.setdefault("distributed_executor_backend", "uni")
        if compat.platform_is_cpu():
            # Eager is exact, and compiling takes minutes on a CPU.
            backend.setdefault("enforce_eager", True)
        arguments = vllm_client.engine_arguments(path, backend)
        config = vllm_client.model_config(arguments)
        self.unsupported: str | None = "injection is switched off" if not inject else refuse_config(config, backend)
        self.fingerprint = engine_fingerprint(path, config, backend, self.settings.models_folder / "digests")
        if self.unsupported is None:
            pool = self.settings.pool_bytes if pool_bytes is None else pool_bytes
            arguments.kv_transfer_config = vllm_client.transfer_config(
                self.settings.kv_folder, self.fingerprint, pool
            )
            arguments.disable_hybrid_kv_cache_manager = True
        elif inject:
            logger.warning("%s is served by plain prefill: %s.", self.model, self.unsupported)
        self._loop = LoopThread("inferscale-engine")
        try:
            self._loop.run(self._start(arguments, path, frontend, in_process=in_process))
        except BaseException:
            self.close()
            raise

    async def _start(self, arguments: Any, path: str, frontend: dict[str, Any], *, in_process: bool) -> None:
        self.client = vllm_client.start_client(arguments, in_process=in_process)
        self.max_model_len: int = self.client.model_config.max_model_len
        self.block_size: int = self.client.vllm_config.cache_config.block_size
        self.world: int = self.client.vllm_config.parallel_config.tensor_parallel_size
        frontend.setdefault("enable_prompt_tokens_details", True)
        state = await compat.serving_state(self.client, path, {"served_model_name": [self.model], **frontend})
        self._chat_serving = state.openai_serving_chat
        self._completion_serving = state.openai_serving_completion
        self.tokenizer = self.client.renderer.tokenizer
        self.prompt = PromptBuilder(self.tokenizer, chat_template=self._chat_serving.chat_template)
        self.capturer = Capturer(self.client)
        self._preparer = Preparer(self)
        if self.unsupported is None:
            self.report = await warmup.verify(self)
            if not self.report.supported:
                self.unsupported = self.report.reason
                logger.warning("%s is served by plain prefill: %s.", self.model, self.unsupported)
        else:
            self.report = SupportReport(False, self.unsupported)

    # -- memory --------------------------------------------------------------------------------------------------------

    def bind(self, resolver: HandleResolver | None) -> None:
        """Resolve handles through this memory from now on; ``None`` unbinds."""
        self._resolver = resolver

    @property
    def resolver(self) -> HandleResolver | None:
        """The memory bound to this engine."""
        return self._resolver

    async def capture(self, token_ids: Sequence[int], spans: Sequence[CaptureSpan], *, salt: str) -> CaptureResult:
        """Run ``token_ids`` through the model and keep the KV of ``spans``; may be awaited from any loop.

        Stored chunk files are on disk when it returns. Spans whose rows were not all captured come back as failed.
        """
        self._check_open()
        return await self._loop.arun(self.capturer.capture(token_ids, spans, salt=salt))

    def follow_deletions(self) -> None:
        """Make the workers look at the store now, so that deleted chunks leave their memory; waits for one step."""
        if not self._closed and self.unsupported is None:
            self._loop.run(self.capturer.nudge())

    # -- chat ----------------------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Answer a conversation; handles in system messages become injected facts.

        Args:
            messages: OpenAI-style messages.
            options: OpenAI's chat options (``max_tokens``, ``temperature``, ``tools``, ...); ``kv_handles=[...]``;
                ``user_id``, ``agent_id``, ``session_id``, ``tenant_id`` to refuse handles of another scope.

        Returns:
            An OpenAI chat completion with the key ``"kv"``.

        Raises:
            PromptError: the prompt does not fit.
            EngineError: vLLM refused the request or died.
        """
        return self._loop.run(self._chat(messages, options))

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Async twin of :meth:`chat`."""
        return await self._loop.arun(self._chat(messages, options))

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """Answer in OpenAI chunks; the last one holds ``usage`` and ``"kv"``. Closing it early aborts the request."""
        return self._loop.stream(self._stream_chat(messages, options))

    def astream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of :meth:`stream_chat`."""
        return self._loop.astream(self._stream_chat(messages, options))

    # -- completion ----------------------------------------------------------------------------------------------------

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Continue a string; every handle in it that opens becomes injected facts. Options as for :meth:`chat`."""
        return self._loop.run(self._complete(prompt, options))

    async def acomplete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Async twin of :meth:`complete`."""
        return await self._loop.arun(self._complete(prompt, options))

    def stream_complete(self, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Continue in OpenAI chunks; the last one holds ``usage`` and ``"kv"``."""
        return self._loop.stream(self._stream_complete(prompt, options))

    def astream_complete(self, prompt: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of :meth:`stream_complete`."""
        return self._loop.astream(self._stream_complete(prompt, options))

    # -- below the OpenAI surface --------------------------------------------------------------------------------------

    def plan(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Plan:
        """Token ids, salt and plan of a conversation, as :meth:`chat` would send it; without sending it."""
        return self._loop.run(self._preparer.chat(messages, dict(options)))

    def generate(self, plan: Plan, *, inject: bool = True, salt: str | None = None, **sampling: Any) -> Any:
        """Run a plan with vLLM's ``SamplingParams`` and return vLLM's final ``RequestOutput``; for benches and tests.

        Args:
            plan: from :meth:`plan`.
            inject: ``False`` prefills the same tokens.
            salt: cache salt; default the plan's own.
            sampling: fields of ``SamplingParams``.
        """
        return self._loop.run(self._generate(plan, inject=inject, salt=salt, sampling=sampling))

    async def agenerate(self, plan: Plan, *, inject: bool = True, salt: str | None = None, **sampling: Any) -> Any:
        """Async twin of :meth:`generate`."""
        return await self._loop.arun(self._generate(plan, inject=inject, salt=salt, sampling=sampling))

    def accounting(self, output: Any) -> Accounting:
        """Where the prompt tokens of a ``RequestOutput`` came from."""
        return self._accounting((output.kv_transfer_params, output.num_cached_tokens or 0, len(output.prompt_token_ids)))

    # -- work on the engine's loop -------------------------------------------------------------------------------------

    async def _generate(self, plan: Plan, *, inject: bool, salt: str | None, sampling: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._check_open()
        inject = inject and bool(plan.inject)
        if inject:
            await self.capturer.ensure(plan)
        extra = {"extra_args": {"kv_transfer_params": inject_params(plan.inject if inject else [])}}
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 1, **sampling, **extra})
        params.output_kind = RequestOutputKind.FINAL_ONLY
        prompt: dict[str, Any] = {"prompt_token_ids": plan.token_ids}
        if salt or plan.salt:
            prompt["cache_salt"] = salt or plan.salt
        output = None
        async for output in self.client.generate(prompt, params, _request_id()):
            pass
        return output

    async def _chat(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
        request, plan = await self._chat_request(messages, options, stream=False)
        answer = await _call(self._chat_serving.create_chat_completion(request))
        return self._with_accounting(answer.model_dump(exclude_none=True), f"chatcmpl-{request.request_id}", plan)

    async def _stream_chat(
        self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        request, plan = await self._chat_request(messages, options, stream=True)
        events = await _call(self._chat_serving.create_chat_completion(request))
        async for chunk in self._chunks(events, f"chatcmpl-{request.request_id}", plan):
            yield chunk

    async def _chat_request(
        self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any], *, stream: bool
    ) -> tuple[Any, Plan | None]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        self._check_open()
        options = dict(options)
        plan = await self._preparer.chat(messages, options)
        sent = plan.cleaned if plan.cleaned is not None else [dict(message) for message in messages]
        fields = {**_openai_fields(options, stream=stream), "messages": sent, "model": self.model}
        if plan.salt is not None:
            # vLLM takes forwarded token ids in place of rendering the messages; tools and parsers still apply.
            await self.capturer.ensure(plan)
            fields["kv_transfer_params"] = {"prompt_token_ids": plan.token_ids, **inject_params(plan.inject)}
            fields["cache_salt"] = plan.salt
        return _validated(ChatCompletionRequest, fields), plan

    async def _complete(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        request, plan = await self._completion_request(prompt, options, stream=False)
        answer = await _call(self._completion_serving.create_completion(request))
        return self._with_accounting(answer.model_dump(exclude_none=True), f"cmpl-{request.request_id}-0", plan)

    async def _stream_complete(self, prompt: str, options: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        request, plan = await self._completion_request(prompt, options, stream=True)
        events = await _call(self._completion_serving.create_completion(request))
        async for chunk in self._chunks(events, f"cmpl-{request.request_id}-0", plan):
            yield chunk

    async def _completion_request(
        self, prompt: str, options: dict[str, Any], *, stream: bool
    ) -> tuple[Any, Plan | None]:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self._check_open()
        options = dict(options)
        plan = await self._preparer.text(prompt, options)
        fields = {**_openai_fields(options, stream=stream), "model": self.model}
        fields["prompt"] = plan.cleaned if plan.cleaned is not None else prompt
        if plan.salt is not None:
            await self.capturer.ensure(plan)
            fields.update(prompt=plan.token_ids, cache_salt=plan.salt, kv_transfer_params=inject_params(plan.inject))
        return _validated(CompletionRequest, fields), plan

    async def _chunks(self, events: Any, request_id: str, plan: Plan | None) -> AsyncGenerator[dict[str, Any], None]:
        last: dict[str, Any] | None = None
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
                last = chunk
            if last is not None:
                yield self._with_accounting(last, request_id, plan)
        finally:
            await events.aclose()

    def _with_accounting(self, answer: dict[str, Any], request_id: str, plan: Plan | None) -> dict[str, Any]:
        found = self.client.finished.pop(request_id, None)
        accounting = self._accounting(found or (None, 0, 0))
        if plan is not None and plan.salt is not None:
            reason = plan.reason or accounting.fallback_reason
            accounting = replace(accounting, fallback_reason=reason)
            self.capturer.learn(plan, accounting)
            self._report_missing(plan, accounting)
        elif self.unsupported and plan is not None and plan.facts:
            accounting = replace(accounting, fallback_reason=self.unsupported)
        metrics.INJECTED_TOKENS.inc(accounting.injected)
        metrics.LOCAL_HIT_TOKENS.inc(accounting.local_hit)
        metrics.PREFILLED_TOKENS.inc(accounting.prefilled)
        if accounting.fallback_reason:
            metrics.FALLBACKS.labels(accounting.fallback_reason.split(":")[0]).inc()
        answer.pop("kv_transfer_params", None)
        answer["kv"] = accounting.as_dict()
        return answer

    def _report_missing(self, plan: Plan, accounting: Accounting) -> None:
        """Tell the memory which chunks the engine stopped at; it looks at their files in a thread of its own."""
        covered = accounting.injected + accounting.local_hit
        volatile = {span.key for span in plan.ensure}
        keys = [span.key for span in plan.inject if span.end > covered and span.key not in volatile]
        if keys and accounting.fallback_reason and self._resolver is not None:
            self._loop.loop.run_in_executor(None, self._resolver.missing, keys)

    def _accounting(self, found: tuple[dict[str, Any] | None, int, int]) -> Accounting:
        params, cached, prompt = found
        return parse_accounting(params) or Accounting(0, cached, prompt - cached, None)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("this engine is closed.")

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the engine and its processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        client = getattr(self, "client", None)
        if client is not None:
            self._loop.run(_shutdown(client))
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _shutdown(client: Any) -> None:
    client.shutdown()


async def _call(work: Any) -> Any:
    """Await one of vLLM's serving calls, with its errors as this library's."""
    try:
        answer = await work
    except InferScaleError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"vLLM refused the request: {error}") from error
    except Exception as error:
        raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
    problem = getattr(answer, "error", None)
    if problem is not None:
        raise EngineError(f"vLLM refused the request: {getattr(problem, 'message', problem)}")
    return answer


def _validated(kind: Any, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except ValueError as error:
        raise InvalidInputError(f"the request is not valid: {error}") from error


def _openai_fields(options: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    fields = {name: value for name, value in options.items() if value is not None}
    fields["request_id"] = _request_id()
    fields["stream"] = stream
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return fields


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = compat.server_option_names()
    frontend = {name: value for name, value in options.items() if name in names}
    return frontend, {name: value for name, value in options.items() if name not in names}


def _request_id() -> str:
    return token_source.token_hex(16)


def scope_of(options: dict[str, Any]) -> Scope | None:
    """Take the scope keywords out of a call's options; ``None`` when it names none.

    Raises:
        ScopeError: an id is blank or malformed.
    """
    given = {name: options.pop(name) for name in SCOPE_OPTIONS if name in options}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    return Scope.of(**{"tenant_id": DEFAULT_TENANT, **given})


__all__ = ["LocalEngine", "PromptError", "scope_of"]
