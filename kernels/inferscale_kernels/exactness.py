"""Are the kernels' bits on this device those of the torch references? For ``bench`` and for tests on a device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from inferscale_kernels.caches import PagedCaches
from inferscale_kernels.capture import capture_cache, capture_cache_reference
from inferscale_kernels.fp8 import Fp8, dequantize
from inferscale_kernels.inject import inject, inject_reference

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LAYERS, _ROWS, _HEADS, _SIZE, _BLOCK = 2, 24, 2, 32, 16


@dataclass(frozen=True)
class Check:
    """One comparison with the reference.

    Attributes:
        case: what was compared.
        max_error: largest absolute difference of two values.
        identical: share of values with the same bits, 0 to 1.
    """

    case: str
    max_error: float
    identical: float


def check_rounding(device: torch.device) -> list[Check]:
    """Inject and capture random states on ``device`` and by the references on the CPU, and compare.

    All bits are claimed to be the same, fp32 too: nothing is fused, divisions are IEEE's, and so is the reference.
    """
    checks = []
    formats: tuple[Fp8 | None, ...] = (None, "e4m3", "e5m2")
    for dtype, fp8, neox in product(DTYPES, formats, (True, False)):
        here, there = (_Setting(dtype, fp8, place) for place in (torch.device("cpu"), device))
        how: dict[str, Any] = {"neox": neox, "rotary_dim": _SIZE}
        label = ", ".join(filter(None, (str(dtype).removeprefix("torch."), fp8, "neox" if neox else "interleaved")))
        for rounding in ("op", "native"):
            inject_reference(*here.injecting(), **how, rounding=rounding)
            inject(*there.injecting(), **how, rounding=rounding)
            checks.append(_compare(f"inject, {label}, {rounding}", here.paged, there.paged, fp8))
        for name, table in (("un-rotated", True), ("as is", False)):
            capture_cache_reference(*here.capturing(table), **how)
            capture_cache(*there.capturing(table), **how)
            checks.append(_compare(f"capture, {label}, {name}", here.back, there.back, None))
    return checks


class _Setting:
    """The same random states wherever they are put."""

    def __init__(self, dtype: torch.dtype, fp8: Fp8 | None, device: torch.device) -> None:
        random = torch.Generator().manual_seed(5)
        states = torch.randn(2, _LAYERS, _ROWS, _HEADS, _SIZE, generator=random) * 4
        self.arena = states.to(dtype).to(device)
        self.back = torch.zeros_like(self.arena)
        shape = (_LAYERS, 4, _HEADS, _BLOCK, 2 * _SIZE)
        self.paged = torch.zeros(shape, dtype=torch.uint8 if fp8 else dtype, device=device)
        cells = [layer.transpose(1, 2) for layer in self.paged]
        self.scales = torch.tensor([0.03, 1.7], device=device) if fp8 else None
        self.caches = PagedCaches.of(
            [x[..., :_SIZE] for x in cells],
            [x[..., _SIZE:] for x in cells],
            fp8=fp8,
            k_scale=self.scales,
            v_scale=self.scales,
        )
        self.rows = torch.randperm(_ROWS, generator=random).to(device)
        self.slots = torch.randperm(4 * _BLOCK, generator=random)[:_ROWS].to(device)
        self.positions = torch.randint(0, 2048, (_ROWS,), generator=random).to(device)
        angles = torch.arange(2048)[:, None] / 1e5 ** (torch.arange(0, _SIZE, 2) / _SIZE)
        self.table = torch.cat((angles.cos(), angles.sin()), -1).to(dtype).to(device)

    def injecting(self) -> tuple[Any, ...]:
        keys, values = self.arena
        return keys, values, self.rows, self.positions, self.slots, self.caches, self.table

    def capturing(self, turned: bool) -> tuple[Any, ...]:
        keys, values = self.back
        table = self.table if turned else None
        return self.caches, self.slots, self.positions, keys, values, self.rows, table


def _compare(case: str, wanted: Tensor, got: Tensor, fp8: Fp8 | None) -> Check:
    got = got.cpu()
    same = (wanted.view(torch.uint8) == got.view(torch.uint8)).view(*wanted.shape, -1).all(-1)
    if fp8 is not None:
        wanted, got = (dequantize(codes, fp8, 1.0, torch.float32) for codes in (wanted, got))
    return Check(case, float((wanted.double() - got.double()).abs().max()), float(same.float().mean()))
