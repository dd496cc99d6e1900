"""Exact search in torch: one matrix product and one top-k, on the GPU where there is one.

The index lives in the process that made it, which is the API process and never vLLM's scheduler or worker. On a GPU its
matrices come out of what vLLM leaves free: ``gpu_memory_utilization`` has to leave room for
``memory_bytes()`` (4 bytes x dim x rows, and up to twice that after growth), about 300-500 MB for this process's own
CUDA context, and the embedder if that is on the same device. 100,000 facts of 384 dimensions are 154 MB.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferscale_memory._extras import require
from inferscale_memory.errors import ConfigError
from inferscale_memory.retrieval.base import Hit
from inferscale_memory.retrieval.grouped import EXACT_MARGIN, GroupedIndex, Rows, check_many
from inferscale_memory.retrieval.numpy_index import MIN_CAPACITY, capacity_for
from inferscale_memory.retrieval.vectors import check_k, ranked, unit_rows

if TYPE_CHECKING:
    import torch

REDUCED_MARGIN = 2e-2
"""The margin where the application lets float32 products run in TF32 or bfloat16 (8 bits of mantissa at least)."""

TOGETHER_ROWS = 1 << 17
"""Rows that ``search_many`` copies side by side at a time, unless one group has more: 200 MB of 384 dimensions."""


class _TorchRows(Rows):
    """A preallocated matrix ``[capacity, dim]`` on one device, of which the first ``_used`` rows count."""

    def __init__(self, torch: Any, dim: int, device: torch.device) -> None:
        self._torch = torch
        self._device = device
        self._matrix = torch.zeros((MIN_CAPACITY, dim), dtype=torch.float32, device=device)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def nbytes(self) -> int:
        return self._matrix.numel() * self._matrix.element_size()

    def append(self, vectors: np.ndarray) -> None:
        end = self._used + len(vectors)
        self._resize(end)
        self._matrix[self._used : end] = self._to_device(vectors)
        self._used = end

    def replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        self._matrix[self._to_device(rows)] = self._to_device(vectors)

    def remove(self, row: int) -> None:
        self._used -= 1
        self._matrix[row] = self._matrix[self._used]
        self._matrix[self._used] = 0.0
        self._resize(self._used)

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._matrix[self._to_device(rows)].cpu().numpy()

    def candidates(self, query: np.ndarray, k: int, rows: np.ndarray | None) -> np.ndarray:
        torch = self._torch
        matrix = self._matrix[: self._used] if rows is None else self._matrix[self._to_device(rows)]
        scores = matrix @ self._to_device(query)
        if k >= len(scores):
            return np.arange(len(scores)) if rows is None else rows
        margin = EXACT_MARGIN if torch.get_float32_matmul_precision() == "highest" else REDUCED_MARGIN
        kth = torch.topk(scores, k, sorted=True).values[-1]
        found = torch.nonzero(scores >= kth - margin).squeeze(1).cpu().numpy()
        return found if rows is None else rows[found]

    @property
    def held(self) -> torch.Tensor:
        """The rows that count, ``[n, dim]``; a view."""
        return self._matrix[: self._used]

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _resize(self, rows: int) -> None:
        capacity = capacity_for(rows, len(self._matrix))
        if capacity == len(self._matrix):
            return
        old = self._matrix
        self._matrix = self._torch.zeros((capacity, old.shape[1]), dtype=old.dtype, device=self._device)
        self._matrix[: self._used] = old[: self._used]
        old.zero_()  # a vector can be inverted to text: leave none behind in freed memory


class _Search(NamedTuple):
    """One of many searches: where its hits go, what for (``[dim]``), and in which rows (``[n, dim]``, their ids)."""

    place: int
    query: np.ndarray
    matrix: torch.Tensor
    ids: Sequence[str]
    rows: np.ndarray | None
    """Numbers of the only rows that are looked at."""


class TorchIndex(GroupedIndex):
    """Exact search in torch, in the calling process.

    Args:
        device: ``"auto"`` takes CUDA where a device is visible and the CPU elsewhere; else any torch device name.
        dim: length of the vectors; None takes it from the first ``upsert``.
        together: ``search_many`` searches all groups by the same few operations, however many there are; None: on
            anything but a CPU, where one after the other is quicker.

    Raises:
        MissingExtraError: torch is not installed.
        ConfigError: the device does not exist.
    """

    def __init__(self, device: str = "auto", dim: int | None = None, together: bool | None = None) -> None:
        super().__init__(dim)
        self._torch = require("torch", "embed", "TorchIndex")
        if device == "auto":
            device = "cuda" if self._torch.cuda.is_available() else "cpu"
        try:
            self.device = self._torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            raise ConfigError(
                f"the index cannot use device {device!r}: {error}. Pass device='auto' or 'cpu', or make it visible."
            ) from error
        self._together = self.device.type != "cpu" if together is None else together

    def search_many(
        self,
        vectors: np.ndarray,
        k: int,
        groups: Sequence[str],
        allowed: Sequence[Collection[str] | None] | None = None,
    ) -> list[list[Hit]]:
        """Find the ``k`` best of each group (see ``VectorIndex.search_many``)."""
        if not self._together:
            return super().search_many(vectors, k, groups, allowed)
        limits = check_many(vectors, groups, allowed)
        k = check_k(k)
        out: list[list[Hit]] = [[] for _ in groups]
        with self._lock:
            queries = unit_rows(vectors, [f"query {at}" for at in range(len(groups))], self.dim)
            part: list[_Search] = []
            for at, (group, limit) in enumerate(zip(groups, limits, strict=True)):
                target = self._groups.get(group)
                rows = None if limit is None or target is None else self._rows_of(limit, group)
                if target is None or (rows is not None and not rows.size):
                    continue
                if part and sum(len(search.ids) for search in part) + len(target.ids) > TOGETHER_ROWS:
                    self._search_part(part, k, out)
                    part = []
                assert isinstance(target.rows, _TorchRows)
                part.append(_Search(at, queries[at], target.rows.held, target.ids, rows))
            if part:
                self._search_part(part, k, out)
        return out

    def _search_part(self, part: Sequence[_Search], k: int, out: list[list[Hit]]) -> None:
        """Rank every search of ``part``: its rows one behind the other, padded to the longest only for the top-k."""
        torch = self._torch
        sizes = np.array([len(search.ids) for search in part])
        starts = np.cumsum(sizes) - sizes
        owner = np.repeat(np.arange(len(part)), sizes)  # row -> its search
        column = np.arange(sizes.sum()) - starts[owner]
        hidden = np.zeros(len(owner), dtype=bool)
        counts = sizes.copy()
        for number, search in enumerate(part):
            if search.rows is not None:
                mine = np.ones(sizes[number], dtype=bool)
                mine[search.rows] = False
                hidden[starts[number] : starts[number] + sizes[number]] = mine
                counts[number] = len(search.rows)
        where = torch.from_numpy(np.stack([owner, column])).to(self.device)
        queries = torch.from_numpy(np.stack([search.query for search in part])).to(self.device)
        stacked = torch.cat([search.matrix for search in part])
        scores = (stacked * queries[where[0]]).sum(dim=1)  # no matrix product: its rounding may be that of TF32
        scores = scores.masked_fill(torch.from_numpy(hidden).to(self.device), -torch.inf)
        padded = scores.new_full((len(part), int(sizes.max())), -torch.inf)
        padded[where[0], where[1]] = scores
        best = torch.topk(padded, min(k, padded.shape[1]), dim=1).values
        last = torch.from_numpy(np.minimum(counts, k) - 1).to(self.device)
        limit = best.gather(1, last[:, None]).squeeze(1) - EXACT_MARGIN
        chosen = torch.nonzero((scores >= limit[where[0]]) & (scores > -torch.inf)).squeeze(1)
        rows, numbers = stacked[chosen].cpu().numpy(), chosen.cpu().numpy()
        edges = np.searchsorted(owner[numbers], np.arange(len(part) + 1))
        for number, search in enumerate(part):
            some = slice(edges[number], edges[number + 1])
            ids = [search.ids[at] for at in column[numbers[some]].tolist()]
            out[search.place] = ranked(ids, rows[some], search.query, k)

    def memory_bytes(self) -> int:
        """Bytes of device memory that the matrices hold, spare capacity included."""
        with self._lock:
            return sum(group.rows.nbytes for group in self._groups.values() if isinstance(group.rows, _TorchRows))

    def _new_rows(self, dim: int) -> Rows:
        return _TorchRows(self._torch, dim, self.device)
