"""The workers' memory tiers as the API side sees them: how large, and what is probably in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from inferscale_memory.budget import MemoryBudget, utilization_beside
from inferscale_memory.config import Settings
from inferscale_memory.lately import Lately
from inferscale_memory.serving import client as vllm_client
from inferscale_memory.serving import compat
from inferscale_memory.serving.options import ConnectorOptions
from inferscale_memory.serving.protocol import WORKER_EXTENSION, TierTokens

logger = logging.getLogger(__name__)

HOST_CACHE_BESIDE_CUDA = "4GiB"


class MemoryPlan(NamedTuple):
    """Bytes of each worker's tiers."""

    arena_bytes: int
    host_bytes: int


def plan(settings: Settings, arena: str | int | None, host_cache: str | int | None) -> MemoryPlan:
    """Bytes of the tiers; what is not given comes from the settings.

    Raises:
        InvalidInputError: a budget cannot be read.
    """
    on_cpu = compat.platform_is_cpu()
    machine = compat.host_memory()
    device = machine if on_cpu else compat.device_memory()
    host = host_cache if host_cache is not None else settings.host_cache
    if host is None:
        host = 0 if on_cpu else HOST_CACHE_BESIDE_CUDA
    wanted = settings.arena if arena is None else arena
    return MemoryPlan(MemoryBudget.parse(wanted).resolve(device), MemoryBudget.parse(host).resolve(machine))


def configure(arguments: Any, options: ConnectorOptions) -> None:
    """Put connector and tiers into vLLM's engine arguments.

    On CUDA the arena is taken out of vLLM's share of the device. Where the user fixed vLLM's cache in bytes nothing is
    taken from it: then the device has to have room for both.

    Raises:
        InvalidInputError: the arena leaves the model nothing.
    """
    arguments.kv_transfer_config = vllm_client.transfer_config(options)
    arguments.disable_hybrid_kv_cache_manager = True
    if not arguments.worker_extension_cls:
        arguments.worker_extension_cls = WORKER_EXTENSION
    if not compat.platform_is_cpu() and not arguments.kv_cache_memory_bytes:
        arguments.gpu_memory_utilization = utilization_beside(
            arguments.gpu_memory_utilization, options.arena_bytes, compat.device_memory()
        )


class Residency:
    """Asks the workers to fetch chunks ahead, and remembers for which it has; lives on the engine's loop.

    What is remembered is a guess, for a minute: a chunk it is wrong about is fetched by the load itself.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._enabled = client.vllm_config.parallel_config.worker_extension_cls == WORKER_EXTENSION
        self._asked = Lately[str]()
        self._tasks: set[asyncio.Task[None]] = set()

    def prefetch(self, keys: Sequence[str]) -> None:
        """Ask for the chunks that were not asked for or used lately."""
        new = self._asked.others(keys)
        self._asked.note(keys)
        if new and self._enabled:
            task = asyncio.get_running_loop().create_task(self._send(new))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def used(self, keys: Sequence[str]) -> None:
        """These chunks are in the workers' memory now."""
        self._asked.note(keys)

    async def loaded(self) -> TierTokens:
        """Tokens that a worker has loaded, by where it found them; of the one that found most in slow tiers."""
        counts = await self._client.collective_rpc("inferscale_loaded") if self._enabled else []
        return max((TierTokens(*count) for count in counts), key=lambda one: one[::-1], default=TierTokens())

    async def drop(self, tier: str) -> None:
        """Have the workers forget the facts' chunks of a tier."""
        self._asked.clear()
        if self._enabled:
            await self._client.collective_rpc("inferscale_drop", args=(tier,))

    async def _send(self, keys: list[str]) -> None:
        try:
            await self._client.collective_rpc("inferscale_prefetch", args=(keys,))
        except Exception as error:  # a wish, not a duty: the engine may be shutting down
            logger.debug("%d chunks were not prefetched: %r", len(keys), error)
