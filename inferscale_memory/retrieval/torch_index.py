"""Exact search in torch: one matrix product and one top-k, on the GPU where there is one.

The index lives in the process that made it, which is the API process and never vLLM's scheduler or worker. On a GPU its
matrices come out of what vLLM leaves free: ``gpu_memory_utilization`` has to leave room for
``memory_bytes()`` (4 bytes x dim x rows, and up to twice that after growth), about 300-500 MB for this process's own
CUDA context, and the embedder if that is on the same device. 100,000 facts of 384 dimensions are 154 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferscale_memory._extras import require
from inferscale_memory.errors import ConfigError
from inferscale_memory.retrieval.grouped import EXACT_MARGIN, GroupedIndex, Rows
from inferscale_memory.retrieval.numpy_index import MIN_CAPACITY, capacity_for

if TYPE_CHECKING:
    import torch

REDUCED_MARGIN = 2e-2
"""The margin where the application lets float32 products run in TF32 or bfloat16 (8 bits of mantissa at least)."""


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


class TorchIndex(GroupedIndex):
    """Exact search in torch, in the calling process.

    Args:
        device: ``"auto"`` takes CUDA where a device is visible and the CPU elsewhere; else any torch device name.
        dim: length of the vectors; None takes it from the first ``upsert``.

    Raises:
        MissingExtraError: torch is not installed.
        ConfigError: the device does not exist.
    """

    def __init__(self, device: str = "auto", dim: int | None = None) -> None:
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

    def memory_bytes(self) -> int:
        """Bytes of device memory that the matrices hold, spare capacity included."""
        with self._lock:
            return sum(group.rows.nbytes for group in self._groups.values() if isinstance(group.rows, _TorchRows))

    def _new_rows(self, dim: int) -> Rows:
        return _TorchRows(self._torch, dim, self.device)
