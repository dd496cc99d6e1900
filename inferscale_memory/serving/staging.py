"""A chunk while it is captured, and where its rows are in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from inferscale_memory.serving.metadata import CapturePiece


@dataclass
class Layer:
    """One attention layer of the model."""

    name: str
    module: Any
    write: Callable[..., None]
    kv_heads: int
    head_dim: int


@dataclass
class Staging:
    """A chunk while its rows arrive, over one or several steps. Shapes are ``[layer, token, kv_head, head_dim]``."""

    start: int
    end: int
    keys: torch.Tensor
    values: torch.Tensor
    seen: torch.Tensor  # bool [layer, token]: this row was captured in this layer
    written: torch.Tensor | None = None  # the engine's own rotated keys, kept when verifying
    calls: dict[int, int] = field(default_factory=dict)  # layer -> rotary calls on keys before its cache write

    @property
    def complete(self) -> bool:
        """Whether every row of the span was captured in every layer."""
        return bool(self.seen.all())


@dataclass
class StepRows:
    """Where the pieces of this step are among the step's token rows."""

    pieces: list[tuple[CapturePiece, Staging]]
    slots: torch.Tensor  # int64 [rows wanted], in piece order
    rows: torch.Tensor | None = None  # int64 [rows wanted]; 0 stands where the step does not compute it
    found: torch.Tensor | None = None  # bool [rows wanted], on the host: whether it does
    calls: dict[int, int] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[CapturePiece, Staging, slice, slice]]:
        """Every piece with its chunk, where it is among the rows wanted, and where in the chunk."""
        at = 0
        for piece, staging in self.pieces:
            count = piece.stop - piece.begin
            yield piece, staging, slice(at, at + count), slice(piece.begin - staging.start, piece.stop - staging.start)
            at += count

    def locate(self, mapping: torch.Tensor) -> None:
        """Find the wanted slots in the step's slot mapping; once per step, the only wait for the device."""
        if self.rows is None:
            rows = find_rows(mapping, self.slots)
            self.found = (rows >= 0).cpu()
            self.rows = rows.clamp_min(0)


def find_rows(slots: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Row of each wanted cache slot in this step's slot mapping, -1 where it is not computed in this step.

    Args:
        slots: int64 ``[rows]``, the slot each token row is written to; padding rows hold -1.
        wanted: int64 ``[n]`` slots, each at least 0.

    Returns:
        int64 ``[n]``.
    """
    order = torch.argsort(slots)
    place = torch.searchsorted(slots[order], wanted).clamp_max(len(slots) - 1)
    rows = order[place]
    return torch.where(slots[rows] == wanted, rows, -1)
