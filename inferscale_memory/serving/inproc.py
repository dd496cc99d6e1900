"""An engine core in this process behind vLLM's async client interface: for debugging, and for tests that look inside.

The default is vLLM's own: scheduler and workers in processes of their own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine.core_client import InprocClient


class InProcessCore(InprocClient):
    """Steps the engine core in one worker thread; every call goes through it, so nothing runs beside a step."""

    def __init__(self, vllm_config: Any, executor_class: Any, log_stats: bool, **_: Any) -> None:
        # One thread for good: vLLM binds CPU threads to the thread that builds the worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine-core")
        self._work = asyncio.Event()
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False)
        self._thread.submit(super().__init__, vllm_config, executor_class, log_stats).result()

    async def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*arguments, **named))

    async def get_output_async(self) -> Any:
        """Step until something comes out; waits while there is no work."""
        while True:
            self._work.clear()
            if not self.engine_core.scheduler.has_requests():
                await self._work.wait()
            outputs = await self._call(self.get_output)
            if outputs.outputs or outputs.finished_requests:
                return outputs

    async def add_request_async(self, request: Any) -> None:
        """Queue a request and wake the stepping."""
        request.client_index = 0
        await self._call(self.add_request, request)
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Abort requests; they may have finished already."""
        await self._call(self.abort_requests, request_ids)

    async def get_supported_tasks_async(self) -> Any:
        """Tasks of the loaded model."""
        return await self._call(self.get_supported_tasks)

    async def reset_prefix_cache_async(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget native blocks."""
        return bool(await self._call(self.reset_prefix_cache, reset_running_requests, reset_connector))

    async def reset_mm_cache_async(self) -> None:
        """Forget multimodal inputs."""
        await self._call(self.reset_mm_cache)

    async def collective_rpc_async(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method on every worker."""
        return list(await self._call(self.collective_rpc, method, timeout, args, kwargs))

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the model; the thread ends. A second call does nothing: vLLM calls it again when it is collected."""
        if self.resources.engine_dead:
            return
        self.resources.engine_dead = True
        self._thread.submit(super().shutdown, timeout).result()
        self._thread.shutdown()
