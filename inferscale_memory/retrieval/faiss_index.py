"""Exact search in FAISS: flat inner product, on the CPU, or cloned to a GPU by the ``cuda`` extra.

The index lives in the process that made it, the API process. With ``gpu=True`` each group that is searched is cloned
to the device once after it was written to; the clones and FAISS's scratch memory come out of what
``gpu_memory_utilization`` leaves to others (4 bytes x dim x rows per clone, beside ``scratch_bytes``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferscale_memory._extras import require
from inferscale_memory.errors import ConfigError
from inferscale_memory.retrieval.grouped import EXACT_MARGIN, GroupedIndex, Rows

GPU_MAX_K = 2048
"""FAISS refuses a larger k on a GPU."""


class _FaissRows(Rows):
    """An ``IndexFlatIP`` on the host, which is the truth, and at most one clone of it on the device."""

    def __init__(self, faiss: Any, dim: int, resources: Any) -> None:
        self._faiss = faiss
        self._dim = dim
        self._flat = faiss.IndexFlatIP(dim)
        self._resources = resources
        self._clone: Any = None

    def __len__(self) -> int:
        return int(self._flat.ntotal)

    def append(self, vectors: np.ndarray) -> None:
        self._clone = None
        self._flat.add(np.ascontiguousarray(vectors))

    def replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        self._clone = None
        self._matrix()[rows] = vectors

    def remove(self, row: int) -> None:
        self._clone = None
        last = len(self) - 1
        matrix = self._matrix()
        matrix[row] = matrix[last]
        matrix[last] = 0.0
        self._flat.remove_ids(self._faiss.IDSelectorRange(last, last + 1))

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._matrix()[rows]

    def candidates(self, query: np.ndarray, k: int, rows: np.ndarray | None) -> np.ndarray:
        total = len(self) if rows is None else len(rows)
        if k >= total:
            return np.arange(total) if rows is None else rows
        fetch = k
        while True:
            # Fetch until the last one is clearly worse than the k-th: all that tie with it are then in hand.
            fetch = min(total, 2 * fetch + 8)
            scores, labels = self._search(query, fetch, rows)
            if fetch == total or scores[-1] < scores[k - 1] - EXACT_MARGIN:
                return labels

    def _search(self, query: np.ndarray, k: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Scores descending and row numbers, both ``[k]``; there are at least ``k`` rows to choose from."""
        parameters = None
        if rows is not None:
            # FAISS keeps only a pointer to the numbers: `rows` outlives the call, as this frame holds it.
            parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBatch(rows))
        on_host = rows is not None or self._resources is None or k > GPU_MAX_K  # no selectors on a GPU
        scores, labels = (self._flat if on_host else self._on_device()).search(query[None], k, params=parameters)
        return scores[0], labels[0]

    def _on_device(self) -> Any:
        if self._clone is None:
            self._clone = self._faiss.index_cpu_to_gpu(self._resources, 0, self._flat)
        return self._clone

    def _matrix(self) -> np.ndarray:
        """Writable view ``[n, dim]`` of FAISS's own memory; lost at the next ``add`` or ``remove_ids``."""
        count = len(self)
        flat = self._faiss.rev_swig_ptr(self._flat.get_xb(), count * self._dim)
        return np.asarray(flat).reshape(count, self._dim)


class FaissIndex(GroupedIndex):
    """Exact search in FAISS, in the calling process.

    Args:
        gpu: search whole groups on GPU 0. Searches that name ``allowed``, or ask for more than 2048 results, run on
            the host copy, since FAISS offers neither on a GPU.
        dim: length of the vectors; None takes it from the first ``upsert``.
        scratch_bytes: device memory that FAISS keeps for its own work, with ``gpu``.

    Raises:
        MissingExtraError: FAISS is not installed.
        ConfigError: ``gpu`` was asked for, and this FAISS has no GPU support or sees no device.
    """

    def __init__(self, gpu: bool = False, dim: int | None = None, scratch_bytes: int = 64 << 20) -> None:
        super().__init__(dim)
        self._faiss = require("faiss", "cuda" if gpu else "cpu", "FaissIndex")
        self._resources: Any = None
        if gpu:
            self._resources = self._gpu_resources(scratch_bytes)

    def _gpu_resources(self, scratch_bytes: int) -> Any:
        faiss = self._faiss
        if not hasattr(faiss, "StandardGpuResources"):
            raise ConfigError(
                "FaissIndex(gpu=True) needs a FAISS built for GPUs, and the one installed is faiss-cpu. Uninstall it "
                "and run: pip install 'inferscale-memory[cuda]' (the two cannot stand side by side), or pass gpu=False."
            )
        if faiss.get_num_gpus() == 0:
            raise ConfigError(
                "FaissIndex(gpu=True) sees no GPU. Make one visible (CUDA_VISIBLE_DEVICES) or pass gpu=False."
            )
        resources = faiss.StandardGpuResources()
        resources.setTempMemory(scratch_bytes)
        return resources

    def _new_rows(self, dim: int) -> Rows:
        return _FaissRows(self._faiss, dim, self._resources)
