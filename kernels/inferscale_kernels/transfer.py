"""What injecting and capturing share: checks, launch, and the rotation of one layer in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.launching import Config, Launch, check_indices, config_for, lanes
from inferscale_kernels.rope import rotate, unrotate

Turn = Literal["op", "native", "undo"]
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Rotation:
    """The rotary tables of a model's layers.

    Attributes:
        cos_sin: ``[P, rotary_dim]``, or ``[T, P, rotary_dim]`` with ``table_of_layer``; cosines, then sines.
        table_of_layer: int32 ``[L]``, which table a layer uses; negative where it does not rotate.
        neox: pairs are ``(i, i + rotary_dim / 2)`` if true, ``(2i, 2i + 1)`` if not.
        rotary_dim: how many leading features are rotated.
    """

    cos_sin: Tensor
    table_of_layer: Tensor | None
    neox: bool
    rotary_dim: int

    def check(self, layers: int, head_dim: int, device: torch.device) -> None:
        """Refuse tables that do not fit the model.

        Raises:
            ValueError: shape, dtype or device of a table, or ``rotary_dim``, does not fit.
        """
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= head_dim:
            raise ValueError(f"rotary_dim is {self.rotary_dim}; wanted an even number in 2..{head_dim} (head size).")
        table, wanted = self.cos_sin, "[positions" if self.table_of_layer is None else "[tables, positions"
        fits = table.dim() == wanted.count(",") + 2 and table.shape[-1] == self.rotary_dim and table.stride(-1) == 1
        if not fits or table.dtype not in _FLOATS or table.device != device:
            raise ValueError(
                f"cos_sin is {table.dtype} {tuple(table.shape)} on {table.device}; wanted {wanted}, rotary_dim = "
                f"{self.rotary_dim}] in bfloat16, float16 or float32 on {device}, rows contiguous"
                + ("; several tables need table_of_layer." if table.dim() == 3 else ".")
            )
        which = self.table_of_layer
        if which is None:
            return
        if which.shape != (layers,) or which.dtype != torch.int32 or which.device != device or which.stride() != (1,):
            raise ValueError(
                f"table_of_layer is {which.dtype} {tuple(which.shape)} on {which.device}; wanted int32 [{layers}] on "
                f"{device}."
            )

    def turn(self, keys: Tensor, positions: Tensor, layer: int, turn: Turn) -> Tensor:
        """Keys ``[N, H, D]`` of one layer turned in plain torch; waits for the device where there are many tables."""
        table = self.cos_sin
        if self.table_of_layer is not None:
            which = int(self.table_of_layer[layer])
            if which < 0:
                return keys
            table = table[which]
        if turn == "undo":
            return unrotate(keys, positions, table, neox=self.neox, rotary_dim=self.rotary_dim)
        return rotate(keys, positions, table, neox=self.neox, rotary_dim=self.rotary_dim, rounding=turn)


def check_transfer(
    arena_keys: Tensor,
    arena_values: Tensor,
    caches: PagedCaches,
    positions: Tensor | None,
    rotation: Rotation | None,
    **indices: Tensor,
) -> None:
    """Refuse what does not fit together, by what the host knows without asking the device.

    Raises:
        ValueError: names what does not fit, what was wanted and where it can be seen, the remedy.
    """
    wanted = (caches.layers, caches.heads, caches.head_dim)
    for name, arena in (("arena_keys", arena_keys), ("arena_values", arena_values)):
        if arena.dim() != 4 or (arena.shape[0], *arena.shape[2:]) != wanted or arena.stride(-1) != 1:
            raise ValueError(
                f"{name} are {tuple(arena.shape)} with strides {arena.stride()}; wanted [{wanted[0]}, slots, "
                f"{wanted[1]}, {wanted[2]}] as the caches have them, last axis contiguous."
            )
        if arena.dtype not in _FLOATS or arena.dtype != arena_keys.dtype or arena.device != caches.device:
            raise ValueError(
                f"{name} are {arena.dtype} on {arena.device}; wanted the model's dtype, the same for keys and values, "
                f"on {caches.device}."
            )
    if caches.fp8 is None and arena_keys.dtype != caches.dtype:
        raise ValueError(f"arena_keys are {arena_keys.dtype}, the caches {caches.dtype}; they have to be alike.")
    (rows,) = next(iter(indices.values())).shape[:1] or (-1,)
    if positions is not None:
        indices["positions"] = positions
    check_indices(rows, caches.device, **indices)
    if rotation is not None:
        if positions is None:
            raise ValueError("positions are None; a rotation needs the position of every row.")
        rotation.check(caches.layers, caches.head_dim, caches.device)


def transfer_launch(
    arena_keys: Tensor,
    arena_values: Tensor,
    arena_rows: Tensor,
    positions: Tensor | None,
    slots: Tensor,
    caches: PagedCaches,
    rotation: Rotation | None,
    *,
    into_cache: bool,
    turn: Turn | None,
    bitwise: str | None,
    config: Config | None,
) -> Launch:
    """The launch of ``transfer`` for arguments that were checked; ``turn`` is None exactly if ``rotation`` is."""
    size, table = caches.head_dim, None if rotation is None else rotation.cos_sin
    config = config or config_for(size, arena_keys.element_size())
    pairs = 0 if rotation is None else rotation.rotary_dim // 2
    arguments = {
        "arena_keys": arena_keys,
        "arena_values": arena_values,
        "arena_rows": arena_rows,
        "positions": positions,
        "slots": slots,
        "key_bases": caches.key_bases,
        "value_bases": caches.value_bases,
        "key_scales": caches.k_scale,
        "value_scales": caches.v_scale,
        "cos_sin": table,
        "table_of_layer": None if rotation is None else rotation.table_of_layer,
        "rows": slots.shape[0],
        "table_stride": table.stride(0) if table is not None and table.dim() == 3 else 0,
        "position_stride": 0 if table is None else table.stride(-2),
        **_strides("arena_key", ("layer", "row", "head"), arena_keys),
        **_strides("arena_value", ("layer", "row", "head"), arena_values),
        **_strides("key", ("block", "slot", "head"), caches.keys[0]),
        **_strides("value", ("block", "slot", "head"), caches.values[0]),
    }
    constants = {
        "INTO_CACHE": into_cache,
        "TURN": turn,
        "NEOX": rotation is None or rotation.neox,
        "FP8": caches.fp8,
        "BITWISE": bitwise,
        "BLOCK": caches.block_size,
        "HEADS": caches.heads,
        "SIZE": size,
        "LANES": lanes(size),
        "PAIRS": pairs,
        "PAIR_LANES": lanes(pairs),
        "ALIGNED": caches.aligned,
        "TILE": config.tile,
    }
    grid = (-(-slots.shape[0] * caches.heads // config.tile), caches.layers)
    return Launch("transfer", grid, arguments, constants, config.warps)


def kept(indices: Tensor, *others: Tensor) -> Tensor:
    """Which rows take part, bool ``[N]``: those with no negative index."""
    keep = indices >= 0
    for other in others:
        keep = keep & (other >= 0)
    return keep


def _strides(name: str, axes: tuple[str, ...], tensor: Tensor) -> dict[str, int]:
    return {f"{name}_{axis}": tensor.stride(number) for number, axis in enumerate(axes)}
