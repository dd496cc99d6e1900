"""From the device arena into the paged cache: gather, rotate to the place in this prompt, scatter.

*Portable*: layer by layer through the engine's own cache write, which every backend has and which hides layout, packing
and scaling. *Kernel*: one launch for all layers and requests, where the caches are plain strided views.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from inferscale_kernels.rope import Rounding
from inferscale_memory.kv.arena import Arena
from inferscale_memory.serving import compat
from inferscale_memory.serving.rotary import Rotator, pairing, table_of
from inferscale_memory.serving.staging import Layer

logger = logging.getLogger(__name__)

# Rows of one pass of the portable writer: its two scratch rows buffers then stay within a core's second-level cache.
GROUP_ROWS = 2048
_PROBE_ROWS = 16


@dataclass(frozen=True)
class Rows:
    """Token rows of a step, on the host: int64 ``[N]`` each."""

    source: np.ndarray
    """Arena slot."""
    positions: np.ndarray
    """Place in its prompt."""
    slots: np.ndarray
    """Slot of the paged cache: block times block size plus offset."""

    @classmethod
    def of_prompt(cls, source: np.ndarray, begin: int, block_ids: Sequence[int], block_size: int) -> Rows:
        """Rows for prompt positions ``begin, begin + 1, ...`` of a request with these blocks."""
        positions = np.arange(begin, begin + len(source), dtype=np.int64)
        blocks = np.asarray(block_ids, dtype=np.int64)[positions // block_size]
        return cls(source, positions, blocks * block_size + positions % block_size)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in ("source", "positions", "slots")))

    def on(self, device: torch.device) -> torch.Tensor:
        """All three as ``[3, N]`` int64 on the device; from pinned memory, so that the host does not wait."""
        stacked = torch.from_numpy(np.stack([self.source, self.positions, self.slots]))
        if device.type == "cuda":
            stacked = stacked.pin_memory()
        return stacked.to(device, non_blocking=True)


class Writer(Protocol):
    """Fills the paged caches of all layers."""

    name: str

    def write(self, rows: Rows) -> None:
        """Enqueue the copy of these rows. The caller has made sure that they are in the arena and stay there."""
        ...

    def wipe(self) -> None:
        """Overwrite what is left of rows that were written."""
        ...


class PortableWriter:
    """Through the engine's own cache write, layer by layer.

    Rotating needs a copy, since the arena keeps keys as they were before rotation; the values are copied because the
    write takes rows in order. Both go through a buffer of one layer that stays in the processor's cache.
    """

    name = "portable"

    def __init__(self, arena: Arena, layers: Sequence[Layer], rotators: Sequence[Rotator]) -> None:
        self._arena, self._layers, self._rotators = arena, layers, rotators
        _, slots, heads, dim = arena.keys.shape
        self._shape = (heads, dim)
        self._keys = arena.keys.view(len(layers), slots, heads * dim)
        self._values = arena.values.view(len(layers), slots, heads * dim)
        self._scratch = torch.empty((2, 0, heads * dim), dtype=arena.keys.dtype, device=arena.keys.device)

    def write(self, rows: Rows) -> None:
        """See ``Writer``."""
        indices = rows.on(self._keys.device)
        for part in indices.split(GROUP_ROWS, dim=1):
            self._write(*part.unbind(0))

    def wipe(self) -> None:
        """See ``Writer``."""
        self._scratch.zero_()

    def _write(self, source: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        count = len(source)
        if self._scratch.shape[1] < count:
            self._scratch = self._scratch.new_empty((2, min(GROUP_ROWS, 2 * count), self._scratch.shape[2]))
        keys, values = self._scratch[0, :count], self._scratch[1, :count]
        by_head = values.view(count, *self._shape)
        for index, (layer, rotate) in enumerate(zip(self._layers, self._rotators, strict=True)):
            torch.index_select(self._keys[index], 0, source, out=keys)
            torch.index_select(self._values[index], 0, source, out=values)
            rotated = rotate(positions, keys).view(count, *self._shape)
            layer.write(layer.module, rotated, by_head, layer.module.kv_cache, slots)


class KernelWriter:
    """One launch of ``inferscale_kernels.inject``."""

    name = "kernel"

    def __init__(self, arena: Arena, caches: Any, table: torch.Tensor, module: Any, rounding: Rounding) -> None:
        from inferscale_kernels.inject import inject

        self._inject = inject
        self._arena, self._caches, self._table, self.rounding = arena, caches, table, rounding
        self._rotary: dict[str, Any] = {**pairing(module), "rounding": rounding}

    def write(self, rows: Rows) -> None:
        """See ``Writer``."""
        source, positions, slots = rows.on(self._arena.keys.device).unbind(0)
        arena = self._arena
        self._inject(arena.keys, arena.values, source, positions, slots, self._caches, self._table, **self._rotary)

    def wipe(self) -> None:
        """See ``Writer``: rows go from the arena to the caches, and nowhere else."""


def choose_writer(
    arena: Arena, layers: Sequence[Layer], rotators: Sequence[Rotator], *, kernels: bool | None = None
) -> Writer:
    """The fastest writer that is right for this engine, decided by trying, never by names.

    Args:
        arena: where the rows come from.
        layers: the model's attention layers; row 0 of their caches' block 0, which vLLM keeps for padding, is written.
        rotators: what rotates each layer's keys in this engine.
        kernels: ``False`` never launches a kernel of ours, ``True`` also on a CPU (interpreted), ``None`` on CUDA.
    """
    device = arena.keys.device
    if kernels or (kernels is None and device.type == "cuda"):
        try:
            writer = _kernel_writer(arena, layers, rotators)
        except Exception as error:  # no compiler, an unknown architecture: the portable way is always there
            logger.warning("KV is injected layer by layer, the kernel cannot be used: %r", error)
        else:
            if writer is not None:
                return writer
    return PortableWriter(arena, layers, rotators)


def _kernel_writer(arena: Arena, layers: Sequence[Layer], rotators: Sequence[Rotator]) -> KernelWriter | None:
    from inferscale_kernels.caches import PagedCaches

    module = rotators[0].module
    table = table_of(module, arena.keys.dtype)
    if table is None or any(rotator.module is not module for rotator in rotators):
        logger.info("KV is injected layer by layer: the layers do not share one rotary table.")
        return None
    views = [paged_views(layer) for layer in layers]
    known = [view for view in views if view is not None]
    if len(known) != len(views):
        logger.info("KV is injected layer by layer: this attention backend packs its cache in a way of its own.")
        return None
    caches = PagedCaches.of([keys for keys, _ in known], [values for _, values in known])
    table = table.to(arena.keys.device)
    rounding = _rounding(arena, table, rotators[0])
    if rounding is None:
        logger.info("KV is injected layer by layer: no arithmetic of the kernel rotates as this engine does.")
        return None
    return KernelWriter(arena, caches, table, module, rounding)


def paged_views(layer: Layer) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values of a layer's cache as views ``[blocks, block_size, kv_heads, head_dim]``, or ``None``.

    Believed only once a row that the engine's own write has stored is read back through them.
    """
    views = compat.split_cache(layer.module.kv_cache, layer.kv_heads, layer.head_dim)
    if views is None:
        return None
    keys, values = views
    rows = min(_PROBE_ROWS, keys.shape[1])
    shape = (rows, layer.kv_heads, layer.head_dim)
    # Distinct numbers that every dtype holds exactly.
    sample = (torch.arange(rows * layer.kv_heads * layer.head_dim, device=keys.device) % 251).view(shape).to(keys.dtype)
    layer.write(layer.module, sample, -sample, layer.module.kv_cache, torch.arange(rows, device=keys.device))
    same = torch.equal(keys[0, :rows], sample) and torch.equal(values[0, :rows], -sample)
    return views if same else None


def _rounding(arena: Arena, table: torch.Tensor, rotator: Rotator) -> Rounding | None:
    """Which of the kernel's two arithmetics gives this engine's rotated keys to the bit."""
    from inferscale_kernels.caches import PagedCaches
    from inferscale_kernels.inject import inject

    _, _, heads, dim = arena.keys.shape
    module, device = rotator.module, arena.keys.device
    rows = min(4 * _PROBE_ROWS, len(table))
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn((1, rows, heads, dim), generator=generator).to(arena.keys.dtype).to(device)
    places = torch.arange(rows, device=device)
    positions = (places * 7919) % len(table)
    want = rotator(positions, sample[0].reshape(rows, -1).clone()).view(rows, heads, dim)
    roundings: tuple[Rounding, ...] = ("op", "native")
    for rounding in roundings:
        target = torch.zeros((2, 1, rows, heads, dim), dtype=sample.dtype, device=device)
        caches = PagedCaches.of([target[0]], [target[1]])
        inject(sample, sample, places, positions, places, caches, table, rounding=rounding, **pairing(module))
        if torch.equal(target[0, 0], want):
            return rounding
    return None
