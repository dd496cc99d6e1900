"""Chunked RoPE in plain torch: turn stored keys to any place of a prompt, and back.

Every kernel is tested against this file. It works on a cos/sin table rather than on angles, because engines keep the
table in the model's dtype: recomputing angles in fp32 gives other bits.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["op", "native"]


def rotate(
    keys: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    *,
    neox: bool,
    rotary_dim: int,
    rounding: Rounding = "op",
) -> Tensor:
    """Rotate pre-RoPE keys to ``positions``.

    With pairs ``(x1, x2)`` of the first ``rotary_dim`` features (the rest passes through)::

        y1 = x1 * cos - x2 * sin
        y2 = x2 * cos + x1 * sin

    For bf16 and fp16 both roundings are bit-identical to vLLM's two arithmetics: products of two such numbers are
    exact in fp32, so it does not matter whether a compiler fuses them. For fp32 keys ``native`` is bit-identical too,
    while ``op`` is within one fp32 rounding of a product (fused or not depends on how the engine was compiled).

    Args:
        keys: ``[..., T, H, D]``, floating point; leading axes (layers) share the positions. Not modified.
        positions: ``[T]``, integers in ``[0, P)``.
        cos_sin_cache: ``[P, rotary_dim]``, cosines in the first half of each row, sines in the second, magnitude
            factors (YaRN, LongRoPE) included. Cast to the dtype of ``keys`` first, as the engine does.
        neox: pairs are ``(i, i + rotary_dim / 2)`` if true, ``(2i, 2i + 1)`` (GPT-J) if not.
        rotary_dim: how many leading features are rotated; even, at most ``D``.
        rounding: ``"op"`` computes in fp32 and rounds once (the engine's C++ and CUDA operators); ``"native"``
            rounds to the dtype of ``keys`` after every operation (the engine's eager torch path).

    Returns:
        ``[..., T, H, D]`` in the dtype of ``keys``, contiguous.

    Raises:
        ValueError: shapes, dtype, ``rotary_dim``, positions or ``rounding`` do not fit.
    """
    _check(keys, positions, cos_sin_cache, rotary_dim)
    if rounding not in ("op", "native"):
        raise ValueError(f"rounding is {rounding!r}; use 'op' (one rounding) or 'native' (one per operation).")
    compute = _accumulate_dtype(keys.dtype) if rounding == "op" else keys.dtype
    cos, sin = _rows(cos_sin_cache, positions, keys, compute)
    x1, x2 = _pairs(keys[..., :rotary_dim].to(compute), neox)
    return _join(x1 * cos - x2 * sin, x2 * cos + x1 * sin, keys, neox, rotary_dim)


def unrotate(keys: Tensor, positions: Tensor, cos_sin_cache: Tensor, *, neox: bool, rotary_dim: int) -> Tensor:
    """Undo :func:`rotate`: recover pre-RoPE keys from rotated ones.

    Computes in fp32 and rounds once. Divides by ``cos**2 + sin**2`` of the table's own entries, which is not 1: tables
    are rounded to the model's dtype, and YaRN and LongRoPE scale them. So it inverts the rotation that took place.

    Error: with ``eps`` of the dtype and ``n`` the norm of a rotated pair, ``rotate(unrotate(y), rounding="op")``
    differs from ``y`` by at most ``1.05 * eps * n`` for bf16 and fp16 (half an ``eps`` for each of the two roundings),
    and ``4 * eps * n`` for fp32, where the arithmetic itself rounds; to which comes the smallest subnormal where
    values fall below the dtype's normal range. Features past ``rotary_dim`` come back exactly.

    Args:
        keys: ``[..., T, H, D]``, rotated at ``positions``. Not modified.
        positions: ``[T]``, as in :func:`rotate`.
        cos_sin_cache: ``[P, rotary_dim]``, as in :func:`rotate`.
        neox: as in :func:`rotate`.
        rotary_dim: as in :func:`rotate`.

    Returns:
        ``[..., T, H, D]`` in the dtype of ``keys``, contiguous.

    Raises:
        ValueError: shapes, dtype, ``rotary_dim`` or positions do not fit.
    """
    _check(keys, positions, cos_sin_cache, rotary_dim)
    compute = _accumulate_dtype(keys.dtype)
    cos, sin = _rows(cos_sin_cache, positions, keys, compute)
    scale = cos * cos + sin * sin
    y1, y2 = _pairs(keys[..., :rotary_dim].to(compute), neox)
    return _join((y1 * cos + y2 * sin) / scale, (y2 * cos - y1 * sin) / scale, keys, neox, rotary_dim)


def _accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _rows(cache: Tensor, positions: Tensor, keys: Tensor, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions, each ``[T, 1, rotary_dim / 2]``."""
    rows = cache.to(keys.device).index_select(0, positions.to(keys.device)).to(keys.dtype).to(compute)
    cos, sin = rows.unsqueeze(-2).chunk(2, dim=-1)
    return cos, sin


def _pairs(rotary: Tensor, neox: bool) -> tuple[Tensor, Tensor]:
    if neox:
        first, second = rotary.chunk(2, dim=-1)
        return first, second
    return rotary[..., ::2], rotary[..., 1::2]


def _join(first: Tensor, second: Tensor, keys: Tensor, neox: bool, rotary_dim: int) -> Tensor:
    rotary = torch.cat((first, second), dim=-1) if neox else torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((rotary.to(keys.dtype), keys[..., rotary_dim:]), dim=-1)


def _check(keys: Tensor, positions: Tensor, cache: Tensor, rotary_dim: int) -> None:
    if keys.dim() < 3 or not keys.is_floating_point():
        raise ValueError(f"keys are {keys.dtype} {tuple(keys.shape)}; wanted floating point [..., T, H, D].")
    tokens, dim = keys.shape[-3], keys.shape[-1]
    if rotary_dim % 2 or not 0 < rotary_dim <= dim:
        raise ValueError(f"rotary_dim is {rotary_dim}; wanted an even number in 2..{dim} (the head size).")
    if cache.dim() != 2 or cache.shape[1] != rotary_dim:
        raise ValueError(f"cos_sin_cache is {tuple(cache.shape)}; wanted [positions, rotary_dim = {rotary_dim}].")
    if positions.shape != (tokens,) or positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"positions are {positions.dtype} {tuple(positions.shape)}; wanted int64 [{tokens}], one per token of keys."
        )
    # On an accelerator reading the extremes would wait for it: there the caller answers for the range.
    if tokens and positions.device.type == "cpu":
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= cache.shape[0]:
            raise ValueError(f"positions span {low}..{high}; the table has rows 0..{cache.shape[0] - 1}.")
