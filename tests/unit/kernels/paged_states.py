"""Arenas, paged caches and rows for the kernels' tests, in every layout an engine may have; two alike to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from inferscale_kernels import PagedCaches

LAYERS, ARENA_SLOTS, BLOCKS, TABLE_ROWS = 2, 24, 3, 64
HALF = (torch.bfloat16, torch.float16)
DTYPES = (*HALF, torch.float32)
# Head size, rotated features: powers of two and not, whole and partial.
DIMS = ((32, 32), (64, 64), (64, 32), (80, 20), (96, 96), (112, 112), (128, 128), (160, 80), (192, 192), (256, 64))


def _packed_hnd(blocks, size, heads, dim, dtype):
    whole = torch.empty(blocks, heads, size, 2 * dim, dtype=dtype)
    cells = whole.transpose(1, 2)
    return whole, cells[..., :dim], cells[..., dim:]


def _packed_nhd(blocks, size, heads, dim, dtype):
    whole = torch.empty(blocks, size, heads, 2 * dim, dtype=dtype)
    return whole, whole[..., :dim], whole[..., dim:]


def _nhd(blocks, size, heads, dim, dtype):
    whole = torch.empty(2, blocks, size, heads, dim, dtype=dtype)
    return whole, whole[0], whole[1]


def _hnd(blocks, size, heads, dim, dtype):
    whole = torch.empty(blocks, 2, heads, size, dim, dtype=dtype)
    return whole, whole[:, 0].transpose(1, 2), whole[:, 1].transpose(1, 2)


def _mixed(blocks, size, heads, dim, dtype):
    """Keys and values of strides of their own: keys slot by slot, values head by head."""
    whole = torch.empty(2, blocks * size * heads * dim, dtype=dtype)
    return whole, whole[0].view(blocks, size, heads, dim), whole[1].view(blocks, heads, size, dim).transpose(1, 2)


def _odd(blocks, size, heads, dim, dtype):
    """Bases and strides that no vector load fits."""
    whole = torch.empty(blocks, size, heads, 3 * dim + 5, dtype=dtype)
    return whole, whole[..., 1 : dim + 1], whole[..., dim + 3 : 2 * dim + 3]


LAYOUTS: dict[str, Callable[..., Any]] = {
    "packed HND": _packed_hnd,
    "packed NHD": _packed_nhd,
    "NHD": _nhd,
    "HND": _hnd,
    "mixed": _mixed,
    "odd": _odd,
}


def arena(layout: str, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """``[2, L, S, H, D]``, not initialised; a view of the named layout."""
    if layout == "layer major":
        return torch.empty(2, LAYERS, ARENA_SLOTS, heads, dim, dtype=dtype)
    if layout == "slot major":
        return torch.empty(ARENA_SLOTS, LAYERS, 2, heads, dim, dtype=dtype).permute(2, 1, 0, 3, 4)
    return torch.empty(2, LAYERS, ARENA_SLOTS, heads + 1, dim + 3, dtype=dtype)[..., 1:, 2 : dim + 2]


ARENAS = ("layer major", "slot major", "padded")


@dataclass
class Case:
    """One drawn situation; ``caches()`` and ``states()`` make the same contents anew at every call."""

    dtype: torch.dtype
    layout: str
    arena_layout: str
    heads: int
    dims: tuple[int, int]
    block: int
    neox: bool
    fp8: str | None
    scaled: bool
    rows: int
    several_tables: bool
    index: torch.dtype
    seed: int

    def __post_init__(self):
        random = torch.Generator().manual_seed(self.seed)
        # A third of the rows is skipped at most; sources may repeat, slots may not.
        self.source = torch.randint(0, ARENA_SLOTS, (self.rows,), generator=random).to(self.index)
        self.distinct = torch.randperm(ARENA_SLOTS, generator=random)[: self.rows].to(self.index)
        self.slots = torch.randperm(BLOCKS * self.block, generator=random)[: self.rows].to(self.index)
        self.slots[torch.rand(self.rows, generator=random) < 0.3] = -1
        self.positions = torch.randint(0, TABLE_ROWS, (self.rows,), generator=random).to(self.index)
        angles = torch.rand(2, TABLE_ROWS, self.dims[1] // 2, generator=random) * 6.3
        tables = torch.cat((angles.cos(), angles.sin()), -1) * 1.1
        self.table = tables if self.several_tables else tables[0]
        self.table_of_layer = torch.tensor([1, -1], dtype=torch.int32) if self.several_tables else None

    @property
    def how(self):
        return {"neox": self.neox, "rotary_dim": self.dims[1], "table_of_layer": self.table_of_layer}

    def states(self) -> torch.Tensor:
        """An arena ``[2, L, S, H, D]`` of random states."""
        made = arena(self.arena_layout, self.heads, self.dims[0], self.dtype)
        random = torch.Generator().manual_seed(self.seed + 1)
        made.copy_(torch.randn(made.shape, generator=random) * 4)
        return made

    def caches(self) -> tuple[list[torch.Tensor], PagedCaches]:
        """Whole tensors, filled with a pattern, one per layer, and the caches within them."""
        stored = torch.uint8 if self.fp8 else self.dtype
        made = [LAYOUTS[self.layout](BLOCKS, self.block, self.heads, self.dims[0], stored) for _ in range(LAYERS)]
        for number, (whole, *_) in enumerate(made):
            random = torch.Generator().manual_seed(self.seed + 2 + number)
            if self.fp8:
                # Codes below 0x78: neither format has a NaN or infinity there.
                whole.copy_(torch.randint(0, 0x78, whole.shape, generator=random))
            else:
                whole.copy_(torch.randn(whole.shape, generator=random))
        scales = torch.tensor([0.5, 0.013]) if self.fp8 and self.scaled else None
        caches = PagedCaches.of([k for _, k, _ in made], [v for *_, v in made], fp8=self.fp8, k_scale=scales)
        return [whole for whole, *_ in made], caches


cases = st.builds(
    Case,
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    arena_layout=st.sampled_from(ARENAS),
    heads=st.integers(1, 3),
    dims=st.sampled_from(DIMS),
    block=st.sampled_from((16, 32, 48, 128)),
    neox=st.booleans(),
    fp8=st.sampled_from((None, None, "e4m3", "e5m2")),
    scaled=st.booleans(),
    rows=st.sampled_from((0, 1, 2, 7, 16, 23)),
    several_tables=st.booleans(),
    index=st.sampled_from((torch.int32, torch.int64)),
    seed=st.integers(0, 2**16),
)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the bit, NaN and the sign of zero included."""
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
