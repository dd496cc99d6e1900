"""Rotating chunk keys to their place with the model's own rotary modules, on the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inferscale_memory.serving import compat


class Rotator:
    """Applies one rotary module to keys ``[tokens, kv_heads, head_dim]`` exactly as the engine's forward does.

    Args:
        module: the model's rotary module.
        native: the engine traces ``forward_native`` (compiled engines).
    """

    def __init__(self, module: Any, *, native: bool) -> None:
        self.module = module
        self._forward: Callable[..., Any] = compat.rotary_forward(module, native=native)
        self._as_query: bool | None = None

    def __call__(self, positions: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Rotate ``keys`` [tokens, kv_heads * head_dim] at ``positions`` [tokens]; may reuse the input's memory."""
        if self._as_query is None:
            self._as_query = self._accepts_query_only(positions, keys)
        if self._as_query:
            return self._forward(positions, keys, None)[0]
        return self._with_dummy_query(positions, keys)

    def _with_dummy_query(self, positions: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        query = torch.zeros(keys.shape[0], self.module.head_size, dtype=keys.dtype, device=keys.device)
        return self._forward(positions, query, keys)[1]

    def _accepts_query_only(self, positions: torch.Tensor, keys: torch.Tensor) -> bool:
        # Rotating keys as "queries" saves a dummy query per token; some modules insist on a key, so try it once.
        sample, places = keys[:4].clone(), positions[:4]
        try:
            alone = self._forward(places, sample.clone(), None)[0]
        except (TypeError, AssertionError, AttributeError, RuntimeError):
            return False
        return torch.equal(alone, self._with_dummy_query(places, sample))


def table_of(module: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """The module's cos|sin table ``[positions, rotary_dim]`` in ``dtype``, as its forward casts it, if it has one.

    LongRoPE keeps two tables in one; which is used is settled when the module is built.
    """
    table = getattr(module, "cos_sin_cache", None)
    if table is None:
        table = getattr(module, "long_short_cos_sin_cache", None)
        if table is not None and module.use_long_rope:
            table = table[module.original_max_position_embeddings :]
    return None if table is None else table.to(dtype)


def pairing(module: Any) -> dict[str, Any]:
    """How the module pairs features, as ``inferscale_kernels`` is told: ``neox`` and ``rotary_dim``."""
    return {"neox": getattr(module, "is_neox_style", True), "rotary_dim": module.rotary_dim}


def position_only(module: Any) -> bool:
    """Whether the module rotates by position alone (M-RoPE has three of them)."""
    return not getattr(module, "mrope_section", None)
