"""fp8 caches in plain torch: what a stored byte means. The kernels are tested against this."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Fp8 = Literal["e4m3", "e5m2"]

DTYPES: dict[str, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def quantize(x: Tensor, fp8: Fp8, scale: Tensor | float) -> Tensor:
    """``x / scale`` to fp8: divided in fp32, to nearest even, saturating at the largest finite value.

    Args:
        x: any shape, floating point.
        fp8: ``"e4m3"`` (fn: no infinities) or ``"e5m2"``.
        scale: number or scalar tensor; stored = value / scale.

    Returns:
        The codes, uint8, shape of ``x``.
    """
    dtype = DTYPES[fp8]
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype).view(torch.uint8)


def dequantize(codes: Tensor, fp8: Fp8, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Codes (uint8) to ``code * scale``, multiplied in fp32 and rounded once to ``dtype``."""
    return (codes.view(DTYPES[fp8]).float() * scale).to(dtype)
