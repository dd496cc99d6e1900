"""Paged key and value caches of all layers, as one launch sees them: base pointers and common strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferscale_kernels.fp8 import DTYPES, Fp8

_VECTOR_BYTES = 16


@dataclass(frozen=True, eq=False)
class PagedCaches:
    """Key and value caches of L layers; made by :meth:`of`, once per engine.

    Attributes:
        keys: one view ``[blocks, block_size, kv_heads, head_dim]`` per layer, kept alive here.
        values: the same for values.
        key_bases: int64 ``[L]`` on the caches' device, address of each layer's first key.
        value_bases: the same for values.
        fp8: format of the stored bytes; None for caches in the model's dtype.
        k_scale: float32 ``[L]`` or None (scales of 1); stored = value / scale.
        v_scale: the same for values.
        aligned: every base address is a multiple of 16 bytes, so that whole vectors are loaded and stored.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    key_bases: Tensor
    value_bases: Tensor
    fp8: Fp8 | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    aligned: bool

    @classmethod
    def of(
        cls,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        *,
        fp8: Fp8 | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> PagedCaches:
        """Describe caches by views of them; nothing is copied.

        NHD and HND layouts, and keys and values packed in the last axis of one tensor, differ in strides only::

            # [blocks, kv_heads, block_size, 2 * head_dim], keys then values in the last axis
            cells = cache.transpose(1, 2)
            keys, values = cells[..., :head_dim], cells[..., head_dim:]

        Args:
            keys: per layer, a view ``[blocks, block_size, kv_heads, head_dim]`` of any strides, the last axis
                contiguous. Shape, strides, dtype and device are those of the first layer; the memory need not be.
            values: the same; their strides may be others than those of the keys.
            fp8: ``"e4m3"`` or ``"e5m2"`` where uint8 caches hold fp8; implied by float8 caches.
            k_scale: float32 ``[L]`` on the caches' device, for fp8 caches; stored = value / scale. Read at every
                launch.
            v_scale: the same for values.

        Raises:
            ValueError: no layers, different numbers of keys and values, or something of a layer that does not fit;
                names the layer.
        """
        keys, values = tuple(keys), tuple(values)
        if not keys or len(keys) != len(values):
            raise ValueError(f"got {len(keys)} key and {len(values)} value caches; wanted one of each per layer.")
        for name, caches in (("keys", keys), ("values", values)):
            for layer, cache in enumerate(caches):
                _check_layer(name, layer, cache, caches[0], keys[0])
        fp8 = _fp8_format(keys[0].dtype, fp8)
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            _check_scale(name, scale, fp8, len(keys), keys[0].device)
        bases = [[cache.data_ptr() for cache in caches] for caches in (keys, values)]
        key_bases, value_bases = (torch.tensor(addresses, device=keys[0].device) for addresses in bases)
        aligned = all(address % _VECTOR_BYTES == 0 for addresses in bases for address in addresses)
        return cls(keys, values, key_bases, value_bases, fp8, k_scale, v_scale, aligned)

    @property
    def layers(self) -> int:
        """How many layers, L."""
        return len(self.keys)

    @property
    def blocks(self) -> int:
        """Blocks per layer."""
        return self.keys[0].shape[0]

    @property
    def block_size(self) -> int:
        """Slots per block; slot = block * block_size + offset."""
        return self.keys[0].shape[1]

    @property
    def heads(self) -> int:
        """KV heads."""
        return self.keys[0].shape[2]

    @property
    def head_dim(self) -> int:
        """Features per head."""
        return self.keys[0].shape[3]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the cache tensors; uint8 or a float8 where they hold fp8."""
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the caches are."""
        return self.keys[0].device


def _check_layer(name: str, layer: int, cache: Tensor, first: Tensor, model: Tensor) -> None:
    if cache.dim() != 4 or cache.stride(-1) != 1:
        raise ValueError(
            f"{name} of layer {layer} are {tuple(cache.shape)} with strides {cache.stride()}; wanted a view [blocks, "
            "block_size, kv_heads, head_dim] whose last axis is contiguous."
        )
    if (cache.shape, cache.dtype, cache.device) != (model.shape, model.dtype, model.device):
        raise ValueError(
            f"{name} of layer {layer} are {cache.dtype} {tuple(cache.shape)} on {cache.device}, keys of layer 0 "
            f"{model.dtype} {tuple(model.shape)} on {model.device}; one launch needs them alike. Make one PagedCaches "
            "for each group of layers."
        )
    if cache.stride() != first.stride():
        raise ValueError(
            f"{name} of layer {layer} have strides {cache.stride()}, those of layer 0 {first.stride()}; one launch "
            "needs them alike. Make one PagedCaches for each group of layers."
        )


def _fp8_format(dtype: torch.dtype, fp8: Fp8 | None) -> Fp8 | None:
    implied = next((name for name, stored in DTYPES.items() if stored == dtype), None)
    if fp8 not in (None, *DTYPES):
        raise ValueError(f"fp8 is {fp8!r}; use 'e4m3', 'e5m2' or None.")
    if implied is not None and fp8 not in (None, implied):
        raise ValueError(f"fp8 is {fp8!r}, the caches are {dtype}; leave fp8 out.")
    if dtype == torch.uint8 and fp8 is None:
        raise ValueError("the caches are uint8; say what the bytes mean: fp8='e4m3' or fp8='e5m2'.")
    if dtype == torch.uint8:
        return fp8
    if implied is None and fp8 is not None:
        raise ValueError(f"fp8 is {fp8!r}, but the caches are {dtype}; wanted uint8 or a float8 dtype.")
    if implied is None and dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"the caches are {dtype}; wanted bfloat16, float16, float32, uint8, float8_e4m3fn or e5m2.")
    return implied  # type: ignore[return-value]


def _check_scale(name: str, scale: Tensor | None, fp8: Fp8 | None, layers: int, device: torch.device) -> None:
    if scale is None:
        return
    if fp8 is None:
        raise ValueError(f"{name} is given for caches that are not fp8; leave it out.")
    if scale.shape != (layers,) or scale.dtype != torch.float32 or scale.device != device or not scale.is_contiguous():
        raise ValueError(
            f"{name} is {scale.dtype} {tuple(scale.shape)} on {scale.device}; wanted a contiguous float32 [{layers}] "
            f"on {device}."
        )
