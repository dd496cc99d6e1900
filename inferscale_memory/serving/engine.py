"""``LocalEngine``: a vLLM engine in this machine that resolves handles, for sync code, async code and notebooks."""

from __future__ import annotations

import atexit
import copy
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from inferscale_memory.config import Settings, load_settings
from inferscale_memory.errors import EncodingError, EngineError
from inferscale_memory.models import resolve_model, tool_call_parser
from inferscale_memory.prompt import PromptBuilder
from inferscale_memory.serving import client as vllm_client
from inferscale_memory.serving import compat, tiers, warmup
from inferscale_memory.serving.capture import Capturer
from inferscale_memory.serving.identity import engine_fingerprint
from inferscale_memory.serving.loop import LoopThread, close_at_exit
from inferscale_memory.serving.openai_api import OpenAISide
from inferscale_memory.serving.options import ConnectorOptions
from inferscale_memory.serving.plans import EnginePlans
from inferscale_memory.serving.prepare import Preparer
from inferscale_memory.serving.protocol import CaptureResult, CaptureSpan
from inferscale_memory.serving.resolve import HandleResolver
from inferscale_memory.serving.support import SupportReport, refuse_config

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 30.0


class LocalEngine(EnginePlans):
    """A vLLM engine whose prompts may hold KV handles.

    Usable from sync code (``chat``), async code (``achat``) and notebooks; every method has a streaming form. Answers
    are OpenAI-shaped dicts with two more keys: ``"kv"``, ``{injected, local_hit, prefilled, fallback_reason}`` tokens,
    and ``"recalled"``, the facts in the prompt, in its order: ``[{"id", "score"}]`` (the cosine of the recall).

    Args:
        model: a demo model (``"demo"``), a Hugging Face folder or a hub id. Default: ``INFERSCALE_MODEL``.
        home: folder of models and memory; default from the settings. Must be the memory's own for injection.
        in_process: run the engine core in this process (for debugging). The default runs it in processes of its own,
            so a script needs an ``if __name__ == "__main__":`` guard.
        inject: ``False`` starts a plain engine: handles are still resolved, their facts are prefilled.
        require_scope: refuse a prompt that holds a handle unless the call names the scope (``user_id=`` ...).
        arena: memory on the device that each worker keeps chunks in, such as ``"2GiB"`` or ``"15%"``; default from the
            settings. On CUDA it comes out of ``gpu_memory_utilization``.
        host_cache: host memory of each worker behind it; default from the settings.
        kernels: ``False`` injects and captures without kernels of ours, also on CUDA; then full CUDA graphs are off.
        options: vLLM's own engine and chat-serving options, such as ``max_model_len``, ``enforce_eager``,
            ``chat_template``, ``enable_auto_tool_choice``, ``tool_call_parser``. The demo model's tools are on.

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
        arena: str | int | None = None,
        host_cache: str | int | None = None,
        kernels: bool | None = None,
        **options: Any,
    ) -> None:
        vllm_client.refuse_respawn()
        compat.prepare_environment()
        self.settings: Settings = load_settings(home)
        self.model = str(model or self.settings.model)
        self.require_scope = require_scope
        self._resolver: HandleResolver | None = None
        self._closed = False
        path = resolve_model(self.model, home=self.settings.home)
        frontend, backend = compat.split_options(options)
        backend.setdefault("max_logprobs", -1)
        backend.setdefault("disable_log_stats", True)
        # A step scheduled ahead may read blocks whose load is about to fail; not tried on a device yet.
        backend.setdefault("async_scheduling", False)
        if in_process:
            backend.setdefault("distributed_executor_backend", "uni")
        if compat.platform_is_cpu():
            # Eager is exact, and compiling takes minutes on a CPU.
            backend.setdefault("enforce_eager", True)
        arguments = vllm_client.engine_arguments(path, backend)
        config = vllm_client.model_config(arguments)
        self.memory_plan = tiers.plan(self.settings, arena, host_cache)
        self.unsupported: str | None
        if not inject:
            self.unsupported = "injection is switched off"
        elif backend.get("kv_transfer_config") is not None:
            self.unsupported = "another KV connector is configured (kv_transfer_config)"
        elif not self.memory_plan.arena_bytes:
            self.unsupported = "the arena has 0 bytes, and a prompt's preamble lives in the workers' memory only"
        else:
            self.unsupported = refuse_config(config, backend)
        self.fingerprint = engine_fingerprint(path, config, backend, self.settings.models_folder / "digests")
        if self.unsupported is None:
            folder, plan = self.settings.kv_folder, self.memory_plan
            tiers.configure(arguments, ConnectorOptions(folder, self.fingerprint, *plan, kernels))
        elif inject:
            logger.warning("%s is served by plain prefill: %s.", self.model, self.unsupported)
        self._loop = LoopThread("inferscale-engine")
        # Without this a script that ends in an exception would wait for the engine's processes for ever.
        self._at_exit = close_at_exit(self)
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
        parser = tool_call_parser(path)
        if parser is not None and "chat_template" not in frontend:
            frontend = {"enable_auto_tool_choice": True, "tool_call_parser": parser, **frontend}
        self.calls_tools = bool(frontend.get("enable_auto_tool_choice"))
        state = await compat.serving_state(self.client, path, {"served_model_name": [self.model], **frontend})
        self.openai = OpenAISide(self, state)
        self.tokenizer = self.client.renderer.tokenizer
        # A copy of its own: prompts are made in several threads, and vLLM changes settings of the one it works with.
        self.prompt = PromptBuilder(copy.deepcopy(self.tokenizer), chat_template=self.openai.chat_template)
        self.capturer = Capturer(self.client)
        self._residency = tiers.Residency(self.client)
        self.preparer = Preparer(self)
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
        return await self._loop.arun(self._open.capturer.capture(token_ids, spans, salt=salt))

    def follow_deletions(self) -> None:
        """Make the workers look at the store now, so that deleted chunks leave their memory; waits for one step."""
        if self._closed or self.unsupported is not None:
            return
        try:
            self._loop.run(self.capturer.nudge())
        except (EngineError, EncodingError) as error:
            # A dead engine holds no memory; its text, vectors and files are erased all the same.
            logger.warning("the engine was not told of a deletion: %s", error)

    # -- chat ----------------------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Answer a conversation; handles in system messages become injected facts.

        Args:
            messages: OpenAI-style messages.
            options: OpenAI's chat options (``max_tokens``, ``temperature``, ``tools``, ...); ``kv_handles=[...]``;
                ``user_id``, ``agent_id``, ``session_id``, ``tenant_id`` to refuse handles of others: those whose facts
                this scope could not have recalled; ``kv_scopes={handle: ids}`` for single handles instead.

        Returns:
            An OpenAI chat completion with the key ``"kv"``.

        Raises:
            PromptError: the prompt does not fit.
            EngineError: vLLM refused the request or died.
        """
        return self._loop.run(self._open.openai.chat(messages, options))

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Async twin of :meth:`chat`."""
        return await self._loop.arun(self._open.openai.chat(messages, options))

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """Answer in OpenAI chunks; the last one holds ``usage`` and ``"kv"``. Closing it early aborts the request."""
        return self._loop.stream(self._open.openai.stream_chat(messages, options))

    def astream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of :meth:`stream_chat`."""
        return self._loop.astream(self._open.openai.stream_chat(messages, options))

    # -- completion ----------------------------------------------------------------------------------------------------

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Continue a string; every handle in it that opens becomes injected facts. Options as for :meth:`chat`."""
        return self._loop.run(self._open.openai.complete(prompt, options))

    async def acomplete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """Async twin of :meth:`complete`."""
        return await self._loop.arun(self._open.openai.complete(prompt, options))

    def stream_complete(self, prompt: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Continue in OpenAI chunks; the last one holds ``usage`` and ``"kv"``."""
        return self._loop.stream(self._open.openai.stream_complete(prompt, options))

    def astream_complete(self, prompt: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Async twin of :meth:`stream_complete`."""
        return self._loop.astream(self._open.openai.stream_complete(prompt, options))

    # -- counting ------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text by itself, without BOS or EOS."""
        return list(self._open.prompt.tokenize(text))

    def count_tokens(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        """Tokens of the conversation's prompt, the facts behind its handles included, however many they are.

        Takes the options of :meth:`chat` that change the prompt (``tools``, ``kv_handles``, the scope).

        Raises:
            PromptError: the chat template cannot render the messages.
        """
        return self._loop.run(self._open.preparer.count(messages, dict(options)))

    @property
    def _open(self) -> Self:
        if self._closed:
            raise EngineError("this engine is closed.")
        return self

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the engine and its processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        client = getattr(self, "client", None)
        try:
            if client is not None:
                self._loop.run(_shutdown(client))
        finally:
            self._loop.close()
            atexit.unregister(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _shutdown(client: Any) -> None:
    # vLLM kills its processes after 5 s by default, which is too soon on a small machine and leaves shared memory.
    client.shutdown(timeout=SHUTDOWN_SECONDS)
