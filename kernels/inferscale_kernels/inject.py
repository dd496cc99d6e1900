"""Arena to paged cache: gather, rotate, scatter; all layers and all requests of a step in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.fp8 import quantize
from inferscale_kernels.launching import Config, bitwise, check_device
from inferscale_kernels.rope import Rounding
from inferscale_kernels.transfer import Rotation, check_transfer, kept, transfer_launch


def inject(
    arena_keys: Tensor,
    arena_values: Tensor,
    source: Tensor,
    positions: Tensor,
    slots: Tensor,
    caches: PagedCaches,
    cos_sin: Tensor | None,
    table_of_layer: Tensor | None = None,
    *,
    neox: bool,
    rotary_dim: int,
    rounding: Rounding = "op",
    config: Config | None = None,
) -> None:
    """Write rows of the arena into the paged caches of all layers, keys rotated to their positions.

    One launch on the current stream, no wait for the device, no memory taken on it: safe between replayed CUDA graphs,
    and inside one. Compiles on the first call with a new model shape, layout or dtype, never for a number of rows; a
    call with ``slots = [-1]`` compiles ahead and writes nothing.

    For bf16 and fp16 both roundings give the bits of :func:`inferscale_kernels.rotate`, hence of vLLM's two
    arithmetics. For fp32 so does ``"native"``; ``"op"`` rounds every product, as the torch reference does, and is
    within one fp32 rounding of an engine whose compiler fused them.

    Args:
        arena_keys: ``[L, S, H, D]``, keys before rotation, in the model's dtype; any strides, last axis contiguous.
        arena_values: the same for values.
        source: int32 or int64 ``[N]``, arena slot of each row. The same slot may come several times.
        positions: int32 or int64 ``[N]``, position in the prompt of each row.
        slots: int32 or int64 ``[N]``, paged slot of each row, block * block_size + offset.
        caches: where to write. In fp8 caches goes ``value / scale``, saturating.
        cos_sin: ``[P, rotary_dim]`` in bf16, fp16 or fp32, or ``[T, P, rotary_dim]`` for models with several rotary
            modules; rounded to the model's dtype first, as engines do. None: keys are copied as they are.
        table_of_layer: int32 ``[L]`` with several tables: which one a layer uses; negative: it does not rotate (there
            the sign of a zero may change).
        neox: pairs are ``(i, i + rotary_dim / 2)`` if true, ``(2i, 2i + 1)`` if not.
        rotary_dim: how many leading features are rotated; even, at most ``D``.
        rounding: ``"op"``: fp32, one rounding. ``"native"``: rounded to the model's dtype after every operation.
        config: how the launch is cut; by default a function of the shape (:func:`config_for`).

    A row with a negative slot or source is skipped. The device is not asked about the rest, so the caller answers for
    it: ``source < S``, ``0 <= positions < P``, ``slots < blocks * block_size``, no slot twice, tables that exist.

    Raises:
        ImportError: Triton is not installed.
        ValueError: shapes, dtypes, devices or strides do not fit.
    """
    rotation = None if cos_sin is None else Rotation(cos_sin, table_of_layer, neox, rotary_dim)
    _check(arena_keys, arena_values, source, positions, slots, caches, rotation, rounding)
    if not slots.shape[0]:
        return
    check_device(caches.device)
    transfer_launch(
        arena_keys,
        arena_values,
        source,
        positions,
        slots,
        caches,
        rotation,
        into_cache=True,
        turn=None if rotation is None else rounding,
        bitwise=bitwise(caches.device, caches.fp8),
        config=config,
    ).run(caches.device)


def inject_reference(
    arena_keys: Tensor,
    arena_values: Tensor,
    source: Tensor,
    positions: Tensor,
    slots: Tensor,
    caches: PagedCaches,
    cos_sin: Tensor | None,
    table_of_layer: Tensor | None = None,
    *,
    neox: bool,
    rotary_dim: int,
    rounding: Rounding = "op",
) -> None:
    """:func:`inject` in plain torch, on any device: layer by layer, with temporaries; the specification of the kernel.

    Args and errors are those of :func:`inject`; on a CPU, positions outside the table raise a ValueError too.
    """
    rotation = None if cos_sin is None else Rotation(cos_sin, table_of_layer, neox, rotary_dim)
    _check(arena_keys, arena_values, source, positions, slots, caches, rotation, rounding)
    keep = kept(slots, source)
    rows, places, at = source[keep].long(), slots[keep].long(), positions[keep]
    block, offset = places // caches.block_size, places % caches.block_size
    for layer in range(caches.layers):
        keys, values = arena_keys[layer, rows], arena_values[layer, rows]
        if rotation is not None:
            keys = rotation.turn(keys, at, layer, rounding)
        for cache, x, scales in (
            (caches.keys[layer], keys, caches.k_scale),
            (caches.values[layer], values, caches.v_scale),
        ):
            if caches.fp8 is None:
                cache[block, offset] = x
            else:
                scale = 1.0 if scales is None else scales[layer]
                cache.view(torch.uint8)[block, offset] = quantize(x, caches.fp8, scale)


def _check(
    arena_keys: Tensor,
    arena_values: Tensor,
    source: Tensor,
    positions: Tensor,
    slots: Tensor,
    caches: PagedCaches,
    rotation: Rotation | None,
    rounding: Rounding,
) -> None:
    if rounding not in ("op", "native"):
        raise ValueError(f"rounding is {rounding!r}; use 'op' (one rounding) or 'native' (one per operation).")
    check_transfer(arena_keys, arena_values, caches, positions, rotation, slots=slots, source=source)
