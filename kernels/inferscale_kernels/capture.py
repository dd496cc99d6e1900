"""The way back: paged cache, or freshly projected keys and values, to the arena."""

from __future__ import annotations

import torch
from torch import Tensor

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.fp8 import dequantize
from inferscale_kernels.launching import Config, Launch, bitwise, check_device, check_indices, config_for, lanes
from inferscale_kernels.transfer import Rotation, check_transfer, kept, transfer_launch


def capture_cache(
    caches: PagedCaches,
    slots: Tensor,
    positions: Tensor | None,
    arena_keys: Tensor,
    arena_values: Tensor,
    target: Tensor,
    cos_sin: Tensor | None = None,
    table_of_layer: Tensor | None = None,
    *,
    neox: bool,
    rotary_dim: int,
    config: Config | None = None,
) -> None:
    """Copy rows of the paged caches to the arena, all layers in one launch, keys un-rotated if there are tables.

    Un-rotating is :func:`inferscale_kernels.unrotate`: fp32, divided by the table's own ``cos**2 + sin**2``, rounded
    once. It recovers rounded keys only approximately (see there); keys caught before rotation go through
    :func:`capture_rows`. Without tables bits are copied. fp8 caches are dequantised (code * scale) and rounded to the
    arena's dtype first. Launches as :func:`inject` does.

    Args:
        caches: where to read.
        slots: int32 or int64 ``[N]``, paged slot of each row, block * block_size + offset.
        positions: int32 or int64 ``[N]``, position at which each row was rotated; may be None without ``cos_sin``.
        arena_keys: ``[L, S, H, D]``, in the model's dtype; any strides, last axis contiguous.
        arena_values: the same for values.
        target: int32 or int64 ``[N]``, arena slot of each row.
        cos_sin: as in :func:`inject`; None: keys are copied as they are.
        table_of_layer: as in :func:`inject`.
        neox: as in :func:`inject`.
        rotary_dim: as in :func:`inject`.
        config: how the launch is cut; by default a function of the shape (:func:`config_for`).

    A row with a negative slot or target is skipped. The caller answers for the ranges of all indices, and for no
    target coming twice.

    Raises:
        ImportError: Triton is not installed.
        ValueError: shapes, dtypes, devices or strides do not fit.
    """
    rotation = None if cos_sin is None else Rotation(cos_sin, table_of_layer, neox, rotary_dim)
    check_transfer(arena_keys, arena_values, caches, positions, rotation, slots=slots, target=target)
    if not slots.shape[0]:
        return
    check_device(caches.device)
    transfer_launch(
        arena_keys,
        arena_values,
        target,
        positions,
        slots,
        caches,
        rotation,
        into_cache=False,
        turn=None if rotation is None else "undo",
        bitwise=bitwise(caches.device, caches.fp8),
        config=config,
    ).run(caches.device)


def capture_cache_reference(
    caches: PagedCaches,
    slots: Tensor,
    positions: Tensor | None,
    arena_keys: Tensor,
    arena_values: Tensor,
    target: Tensor,
    cos_sin: Tensor | None = None,
    table_of_layer: Tensor | None = None,
    *,
    neox: bool,
    rotary_dim: int,
) -> None:
    """:func:`capture_cache` in plain torch, on any device; the specification of the kernel."""
    rotation = None if cos_sin is None else Rotation(cos_sin, table_of_layer, neox, rotary_dim)
    check_transfer(arena_keys, arena_values, caches, positions, rotation, slots=slots, target=target)
    keep = kept(slots, target)
    rows, places = target[keep].long(), slots[keep].long()
    block, offset = places // caches.block_size, places % caches.block_size

    def read(cache: Tensor, scales: Tensor | None, layer: int) -> Tensor:
        if caches.fp8 is None:
            return cache[block, offset]
        scale = 1.0 if scales is None else scales[layer]
        return dequantize(cache.view(torch.uint8)[block, offset], caches.fp8, scale, arena_keys.dtype)

    for layer in range(caches.layers):
        keys = read(caches.keys[layer], caches.k_scale, layer)
        if rotation is not None and positions is not None:
            keys = rotation.turn(keys, positions[keep], layer, "undo")
        arena_keys[layer, rows] = keys
        arena_values[layer, rows] = read(caches.values[layer], caches.v_scale, layer)


def capture_rows(
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    arena_keys_layer: Tensor,
    arena_values_layer: Tensor,
    target: Tensor,
    *,
    config: Config | None = None,
) -> None:
    """Copy projected keys and values of one layer to the arena, bit by bit, in one launch.

    Launches as :func:`inject` does: once per layer, while the model runs.

    Args:
        keys: ``[R, H, D]``, in the model's dtype; any strides, last axis contiguous (a slice of a fused projection).
        values: the same for values.
        rows: int32 or int64 ``[N]``, which of the ``R`` rows.
        arena_keys_layer: ``[S, H, D]``, the layer's part of the arena; any strides, last axis contiguous.
        arena_values_layer: the same for values.
        target: int32 or int64 ``[N]``, arena slot of each.
        config: how the launch is cut; by default a function of the shape (:func:`config_for`).

    A row or target that is negative is skipped. The caller answers for the ranges, and for no target coming twice.

    Raises:
        ImportError: Triton is not installed.
        ValueError: shapes, dtypes, devices or strides do not fit.
    """
    _check_rows(keys, values, rows, arena_keys_layer, arena_values_layer, target)
    if not rows.shape[0]:
        return
    check_device(keys.device)
    rows_launch(keys, values, rows, arena_keys_layer, arena_values_layer, target, config).run(keys.device)


def capture_rows_reference(
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    arena_keys_layer: Tensor,
    arena_values_layer: Tensor,
    target: Tensor,
) -> None:
    """:func:`capture_rows` in plain torch, on any device; the specification of the kernel."""
    _check_rows(keys, values, rows, arena_keys_layer, arena_values_layer, target)
    keep = kept(rows, target)
    arena_keys_layer[target[keep].long()] = keys[rows[keep].long()]
    arena_values_layer[target[keep].long()] = values[rows[keep].long()]


def rows_launch(
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    arena_keys_layer: Tensor,
    arena_values_layer: Tensor,
    target: Tensor,
    config: Config | None,
) -> Launch:
    """The launch of ``store_rows`` for arguments that were checked."""
    heads, size = keys.shape[1:]
    config = config or config_for(size, keys.element_size())
    tensors = {"key": keys, "value": values, "arena_key": arena_keys_layer, "arena_value": arena_values_layer}
    arguments = {
        **{f"{name}s": tensor for name, tensor in tensors.items()},
        "source_rows": rows,
        "target_rows": target,
        "rows": rows.shape[0],
        **{f"{name}_row": tensor.stride(0) for name, tensor in tensors.items()},
        **{f"{name}_head": tensor.stride(1) for name, tensor in tensors.items()},
    }
    constants = {"HEADS": heads, "SIZE": size, "LANES": lanes(size), "TILE": config.tile}
    return Launch("store_rows", (-(-rows.shape[0] * heads // config.tile), 1), arguments, constants, config.warps)


def _check_rows(
    keys: Tensor, values: Tensor, rows: Tensor, arena_keys: Tensor, arena_values: Tensor, target: Tensor
) -> None:
    named = {"keys": keys, "values": values, "arena_keys_layer": arena_keys, "arena_values_layer": arena_values}
    for name, tensor in named.items():
        alike = tensor.shape[1:] == keys.shape[1:] and tensor.dtype == keys.dtype and tensor.device == keys.device
        if tensor.dim() != 3 or not alike or tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} are {tensor.dtype} {tuple(tensor.shape)} on {tensor.device} with strides {tensor.stride()}; "
                f"wanted [rows, kv_heads, head_dim], the last two axes, dtype and device as those of keys, "
                f"{keys.dtype} {tuple(keys.shape)} on {keys.device}, last axis contiguous."
            )
    if rows.dim() != 1:
        raise ValueError(f"rows are {tuple(rows.shape)}; wanted one axis, [N].")
    check_indices(rows.shape[0], keys.device, rows=rows, target=target)
