"""The vLLM KV connector: one object per side, each delegating to the class that knows how.

The three steps of a load are visible in the method order: match (how much is covered), allocate (remember what to
load), load (fill the blocks before the forward).
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from inferscale_memory.serving import compat
from inferscale_memory.serving.metadata import StepMetadata
from inferscale_memory.serving.options import ConnectorOptions
from inferscale_memory.serving.scheduler import SchedulerSide
from inferscale_memory.serving.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class InferScaleConnector(KVConnectorBase_V1):
    """Captures encoded facts and injects recalled ones.

    ``kv_connector_extra_config`` is read by :class:`~inferscale_memory.serving.options.ConnectorOptions`.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        options = ConnectorOptions.parse(self._kv_transfer_config.kv_connector_extra_config)
        block_size = vllm_config.cache_config.block_size
        world = vllm_config.parallel_config.tensor_parallel_size
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(options.root, options.fingerprint, block_size, world)
        else:
            rank = get_tensor_model_parallel_rank()
            self._worker = WorkerSide(options, block_size=block_size, rank=rank, world=world)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether Python has to run inside every forward.

        Loads are complete before it, and captures are read after it (see ``CacheTap``), so decode steps may replay
        full graphs. Without our kernels captures hook into the forward, and only piecewise graphs are left. Where
        kernels are wanted and the caches turn out to be packed in a way of their own, rows that a full graph hides are
        noticed, and the fact is encoded again.
        """
        return extra_config.get("kernels") is False or importlib.util.find_spec("triton") is None

    # -- scheduler side ------------------------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """The scheduler's blocks, from which a failed load must be taken out of the native prefix cache."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.blocks = kv_cache_manager

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Match: tokens past the local prefix hit that can be injected, synchronously."""
        assert self._scheduler is not None
        return self._scheduler.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Allocate: the request has its blocks."""
        assert self._scheduler is not None
        self._scheduler.after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Hand this step's loads and captures to the workers."""
        assert self._scheduler is not None
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take in the workers' reports."""
        assert self._scheduler is not None
        self._scheduler.update(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks may be freed at once; the accounting goes back to the caller."""
        assert self._scheduler is not None
        return False, self._scheduler.finished(request)

    @property
    def worker(self) -> WorkerSide | None:
        """The worker's side, in a worker."""
        return self._worker

    # -- worker side ---------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The model is loaded and its caches exist: hook the taps in."""
        assert self._worker is not None
        modules = compat.attention_layers(self._vllm_config)
        layers = {name: modules[name] for name in kv_caches if name in modules}
        self._worker.install(layers, compiled=compat.is_compiled(self._vllm_config))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the forward: ``start_load_kv`` may run after it, so the tap is armed here."""
        super().bind_connector_metadata(connector_metadata)
        assert self._worker is not None
        assert isinstance(connector_metadata, StepMetadata)
        self._worker.begin(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Load: fill the blocks of every request admitted in this step."""
        metadata = self._get_connector_metadata()
        assert self._worker is not None
        assert isinstance(metadata, StepMetadata)
        if metadata.loads:
            self._worker.load(metadata.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are complete before the forward starts."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Captures are taken by the taps."""

    def wait_for_save(self) -> None:
        """After the forward: store what was captured."""
        assert self._worker is not None
        self._worker.finish_step()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Nothing is transferred in the background; half-captured chunks of these requests are dropped."""
        assert self._worker is not None
        self._worker.drop_staged(finished_req_ids)
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that must be recomputed."""
        assert self._worker is not None
        return self._worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What happened in this step, for the scheduler side."""
        assert self._worker is not None
        return self._worker.take_report()

    def shutdown(self) -> None:
        """Take the hooks out; the store needs no closing."""
        if self._worker is not None:
            self._worker.close()
