"""Taps of compiled engines that capture with kernels of ours."""

from __future__ import annotations

import logging
from typing import Any

import torch

from inferscale_memory.serving.rotary import pairing, table_of
from inferscale_memory.serving.staging import Layer, Staging, StepRows
from inferscale_memory.serving.taps import Tap, UnrotatedTap
from inferscale_memory.serving.writers import paged_views

logger = logging.getLogger(__name__)


def compiled_tap(layers: list[Layer], block_size: int, *, kernels: bool | None = None) -> Tap:
    """The best tap for a compiled engine, decided by trying.

    Args:
        layers: the model's attention layers, their caches bound.
        block_size: tokens per cache block.
        kernels: as for ``writers.choose_writer``.
    """
    device = layers[0].module.kv_cache.device
    if kernels or (kernels is None and device.type == "cuda"):
        try:
            views = [paged_views(layer) for layer in layers]
            known = [view for view in views if view is not None]
            return CacheTap(layers, block_size, known) if len(known) == len(views) else RowsTap(layers, block_size)
        except Exception as error:  # no compiler, an unknown architecture: torch can do it too
            logger.warning("KV is captured without kernels: %r", error)
    return UnrotatedTap(layers, block_size, native=True)


class CacheTap(UnrotatedTap):
    """Reads the paged caches after the forward: all layers in one launch per chunk, keys un-rotated on the way.

    Needs no Python inside the forward, so it holds in steps that replay a full CUDA graph too.
    """

    hooks_writes = False

    def __init__(self, layers: list[Layer], block_size: int, views: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        from inferscale_kernels.caches import PagedCaches
        from inferscale_kernels.capture import capture_cache

        super().__init__(layers, block_size, native=True)
        self._read = capture_cache
        self._rotary: dict[str, Any] = {"neox": True, "rotary_dim": layers[0].head_dim}
        self._caches = PagedCaches.of([keys for keys, _ in views], [values for _, values in views])
        self._table: torch.Tensor | None = None
        if self._module is not None:
            self._rotary = pairing(self._module)
            table = table_of(self._module, layers[0].module.dtype)
            self._table = None if table is None else table.to(self._caches.device)
        self._try()

    def _try(self) -> None:
        """Run the kernel both ways, on a row of vLLM's padding block: what cannot be compiled fails now.

        Raises:
            RuntimeError: it does not read what is there.
        """
        caches, layer = self._caches, self.layers[0]
        shape = (2, caches.layers, 1, layer.kv_heads, layer.head_dim)
        keys, values = torch.empty(shape, dtype=layer.module.dtype, device=caches.device).unbind(0)
        first = torch.zeros(1, dtype=torch.int64, device=caches.device)
        self._read(caches, first, first, keys, values, first, self._table, **self._rotary)
        self._read(caches, first, None, keys, values, first, **self._rotary)
        if not (torch.equal(keys[0, 0], caches.keys[0][0, 0]) and torch.equal(values[0, 0], caches.values[0][0, 0])):
            raise RuntimeError("the capture kernel does not read what the cache holds")

    def after_forward(self) -> None:
        """Capture the pieces of the step that has just run."""
        if self.step is not None:
            self._capture_step(self.step)
        super().after_forward()

    def _capture_step(self, step: StepRows) -> None:
        for piece, staging, here, there in step.parts():
            slots = step.slots[here]
            positions = torch.arange(piece.begin, piece.stop, device=slots.device)
            target = positions - staging.start
            self._read(
                self._caches, slots, positions, staging.keys, staging.values, target, self._table, **self._rotary
            )
            if staging.written is not None:  # what verifying compares with: the same rows as they are
                unused = torch.empty_like(staging.values)
                self._read(self._caches, slots, None, staging.written, unused, target, **self._rotary)
            staging.seen[:, there] = True

    def pre_rope(self, staging: Staging) -> torch.Tensor:
        """Keys as they were staged: un-rotated already."""
        return staging.keys


class RowsTap(UnrotatedTap):
    """Captures each layer's rows as they are written, in one launch per layer and chunk.

    For engines that pack their caches in a way of their own.
    """

    def __init__(self, layers: list[Layer], block_size: int) -> None:
        from inferscale_kernels.capture import capture_rows

        super().__init__(layers, block_size, native=True)
        self._copy = capture_rows
        layer = layers[0]
        shape = (2, 1, layer.kv_heads, layer.head_dim)
        sample = torch.ones(shape, dtype=layer.module.dtype, device=layer.module.kv_cache.device)
        there, first = torch.zeros_like(sample), torch.zeros(1, dtype=torch.int64, device=sample.device)
        self._copy(sample[0], sample[1], first, there[0], there[1], first)
        if not torch.equal(there, sample):
            raise RuntimeError("the capture kernel does not copy what it is given")

    def _capture(self, index: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        step, layer = self.step, self.layers[index]
        assert step is not None
        step.locate(slots)
        assert step.rows is not None
        assert step.found is not None
        keys, values = (states.view(-1, layer.kv_heads, layer.head_dim) for states in (key, value))
        for _, staging, here, there in step.parts():
            rows = step.rows[here]
            target = torch.arange(there.start, there.stop, device=rows.device)
            self._copy(keys, values, rows, staging.keys[index], staging.values[index], target)
            staging.seen[index, there] = step.found[here]
            if staging.written is not None:
                staging.written[index, there] = staging.keys[index, there]
