"""Exact search in numpy: needs no extra, and is what ``Memory`` falls back to."""

from __future__ import annotations

import numpy as np

from inferscale_memory.retrieval.grouped import EXACT_MARGIN, GroupedIndex, Rows

MIN_CAPACITY = 16
"""Rows that the smallest matrix has room for."""


def capacity_for(rows: int, capacity: int) -> int:
    """Room that a matrix of ``capacity`` should have for ``rows``: doubled when full, halved when a quarter is used."""
    while rows > capacity:
        capacity = max(2 * capacity, MIN_CAPACITY)
    while capacity > MIN_CAPACITY and rows <= capacity // 4:
        capacity //= 2
    return capacity


class _NumpyRows(Rows):
    """A preallocated matrix of which the first ``_used`` rows count."""

    def __init__(self, dim: int) -> None:
        self._matrix = np.zeros((MIN_CAPACITY, dim), dtype=np.float32)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def append(self, vectors: np.ndarray) -> None:
        end = self._used + len(vectors)
        self._resize(end)
        self._matrix[self._used : end] = vectors
        self._used = end

    def replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        self._matrix[rows] = vectors

    def remove(self, row: int) -> None:
        self._used -= 1
        self._matrix[row] = self._matrix[self._used]
        self._matrix[self._used] = 0.0
        self._resize(self._used)

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._matrix[rows]

    def candidates(self, query: np.ndarray, k: int, rows: np.ndarray | None) -> np.ndarray:
        matrix = self._matrix[: self._used] if rows is None else self._matrix[rows]
        scores = matrix @ query
        if k < len(scores):
            kth = np.partition(scores, len(scores) - k)[len(scores) - k]
            found = np.flatnonzero(scores >= kth - EXACT_MARGIN)
        else:
            found = np.arange(len(scores))
        return found if rows is None else rows[found]

    def _resize(self, rows: int) -> None:
        capacity = capacity_for(rows, len(self._matrix))
        if capacity == len(self._matrix):
            return
        old = self._matrix
        self._matrix = np.zeros((capacity, old.shape[1]), dtype=np.float32)
        self._matrix[: self._used] = old[: self._used]
        old[:] = 0.0  # a vector can be inverted to text: leave none behind in freed memory


class NumpyIndex(GroupedIndex):
    """Exact search on the CPU, in the calling process, without torch or FAISS.

    Args:
        dim: length of the vectors; None takes it from the first ``upsert``.
    """

    def _new_rows(self, dim: int) -> Rows:
        return _NumpyRows(dim)
