"""What stands in for something real where a benchmark is about something else, and says so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


class RandomEmbedder:
    """An embedder that maps each text to a random direction of its own: no model, and as many texts as one likes.

    The same text has the same vector in every process. Which facts are found is meaningless, what finding them costs
    is not: the index compares all vectors of a user in any case.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.id = f"bench:random:{dim}"

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """``[len(texts), dim]`` float32, rows of length 1."""
        rows = np.empty((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            row[:] = np.random.default_rng(seed).standard_normal(self.dim)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
