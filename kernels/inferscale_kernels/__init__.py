"""Kernels that move attention states into a paged KV cache and back, each beside its reference in plain torch.

Usable alone: needs torch, for the kernels Triton (imported on first use); knows nothing of memories, facts or vLLM.
"""

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.capture import (
    capture_cache,
    capture_cache_reference,
    capture_rows,
    capture_rows_reference,
)
from inferscale_kernels.inject import inject, inject_reference
from inferscale_kernels.launching import Config, candidates, config_for, interpreted
from inferscale_kernels.rope import rotate, unrotate

__all__ = [
    "Config",
    "PagedCaches",
    "candidates",
    "capture_cache",
    "capture_cache_reference",
    "capture_rows",
    "capture_rows_reference",
    "config_for",
    "inject",
    "inject_reference",
    "interpreted",
    "rotate",
    "unrotate",
]
