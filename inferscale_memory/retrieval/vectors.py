"""Checks and arithmetic on vectors that every embedder and index shares, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.retrieval.base import Hit


def unit_rows(vectors: object, names: Sequence[str], dim: int | None = None) -> np.ndarray:
    """Check ``vectors`` and scale each row to length 1.

    Args:
        vectors: array-like ``[len(names), dim]``.
        names: what to call each row in an error.
        dim: the dimension wanted; None takes any.

    Returns:
        ``[len(names), dim]`` float32, C-contiguous, a copy.

    Raises:
        InvalidInputError: the shape is wrong, or a row is NaN, infinite or zero; says which row.
    """
    try:
        # float64, so that the length of a row of tiny or huge float32 values neither underflows nor overflows.
        rows = np.array(vectors, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"vectors are not a rectangular array of numbers: {error}.") from error
    if rows.ndim == 1 and rows.size == 0 and not names:
        rows = rows.reshape(0, dim or 0)
    if rows.ndim != 2 or rows.shape[0] != len(names):
        raise InvalidInputError(f"got an array of shape {rows.shape}, want one vector for each of {len(names)} names.")
    if names and rows.shape[1] != (dim or rows.shape[1] or 1):
        raise InvalidInputError(
            f"vector of {names[0]!r} has {rows.shape[1]} dimensions, want {dim or 'at least one'}. "
            "Vectors of different embedders cannot share an index; make a new one."
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise InvalidInputError(f"vector of {names[int(finite.argmin())]!r} holds NaN or infinity.")
    lengths = np.linalg.norm(rows, axis=1)
    if not lengths.all():
        raise InvalidInputError(f"vector of {names[int(lengths.argmin())]!r} is zero, so it has no direction.")
    if not np.isfinite(lengths).all():
        raise InvalidInputError(f"vector of {names[int(lengths.argmax())]!r} is too long for its length to be taken.")
    return (rows / lengths[:, None]).astype(np.float32)


def cosines(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Inner products of unit rows and a unit query, in float64, clipped to [-1, 1].

    Each row is reduced on its own, so that equal rows get equal scores wherever they stand; a BLAS product may give
    the last rows of a matrix another rounding than the first.

    Args:
        rows: ``[n, dim]`` float32.
        query: ``[dim]`` float32.
    """
    products = rows.astype(np.float64) * query.astype(np.float64)
    return np.clip(products.sum(axis=1), -1.0, 1.0)


def ranked(ids: Sequence[str], rows: np.ndarray, query: np.ndarray, k: int) -> list[Hit]:
    """Rank candidates by exact cosine descending, then id, and keep ``k``.

    Args:
        ids: one per row.
        rows: ``[len(ids), dim]`` float32 unit rows.
        query: ``[dim]`` float32 unit vector.
        k: how many to keep.
    """
    hits = [Hit(id, float(score)) for id, score in zip(ids, cosines(rows, query), strict=True)]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]


def check_k(k: object) -> int:
    """Return ``k`` if it is a positive integer.

    Raises:
        InvalidInputError: it is not.
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k <= 0:
        raise InvalidInputError(f"k is {k!r}, want a positive integer: how many results to return.")
    return int(k)
