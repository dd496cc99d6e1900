"""The contracts of retrieval: what an embedder and a vector index promise, whichever is plugged in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from inferscale_memory.errors import InferScaleError


class EmbeddingError(InferScaleError):
    """The embedder raised, or gave back vectors that cannot be used."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose inner product is their cosine similarity."""

    @property
    def id(self) -> str:
        """Name under which vectors are stored. Embedders that give different vectors have different ids."""

    @property
    def dim(self) -> int:
        """Length of every vector."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embed ``texts``: ``[len(texts), dim]`` float32, each row of length 1, in the order of ``texts``.

        Must be safe to call from several threads, and the vector of a text must not depend on its neighbours beyond
        rounding. No texts give ``[0, dim]``.

        Raises:
            Exception: any; the caller isolates the text that caused it by embedding one at a time.
        """


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of an index: the id, and the cosine of its vector and the query, in [-1, 1]."""

    id: str
    score: float


class VectorIndex(Protocol):
    """Exact nearest-neighbour search by cosine, in groups that never see one another.

    Every method may be called from several threads at once, and each is atomic: a search sees an ``upsert`` or a
    ``delete`` whole or not at all. Nothing is persisted; the owner fills the index after a restart.
    """

    def upsert(self, ids: Sequence[str], vectors: np.ndarray, group: str) -> None:
        """Insert or replace vectors; an id that is in another group moves. A repeated id: the last one wins.

        Args:
            ids: one per row.
            vectors: ``[len(ids), dim]`` of any length but zero; they are normalised. The first call fixes ``dim``.
            group: whose vectors they are; an id is in one group at a time.

        Raises:
            InvalidInputError: a vector is NaN, infinite, zero or of another dimension. The message names its id, and
                nothing of the call is stored.
        """

    def delete(self, ids: Collection[str]) -> int:
        """Forget ``ids`` and overwrite their vectors in memory; unknown ids are ignored. Returns how many were held."""

    def search(self, vector: np.ndarray, k: int, group: str, allowed: Collection[str] | None = None) -> list[Hit]:
        """Find the ``k`` best of ``group``, by score descending, then id: the same order in every implementation.

        Args:
            vector: ``[dim]``; normalised first.
            k: at least 1. Fewer hits come back only if fewer exist.
            group: the only group that is looked at; an unknown one has no hits.
            allowed: where given, only these ids are ranked; foreign and unknown ids among them are ignored.

        Raises:
            InvalidInputError: ``k`` is not a positive integer, or the vector cannot be used.
        """

    def search_many(
        self,
        vectors: np.ndarray,
        k: int,
        groups: Sequence[str],
        allowed: Sequence[Collection[str] | None] | None = None,
    ) -> list[list[Hit]]:
        """What ``search`` finds for each row of ``vectors`` in its own group, in one go.

        Args:
            vectors: ``[n, dim]``.
            k: at least 1, for all of them.
            groups: ``n`` of them; one may occur often.
            allowed: ``n`` of them, see ``search``; None restricts nothing.

        Raises:
            InvalidInputError: as ``search``, or there is not one group for each vector.
        """

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Return a copy of the stored vectors: ``[len(ids), dim]`` float32, each of length 1.

        Raises:
            KeyError: an id is not held; the message names it.
        """

    def __contains__(self, id: object) -> bool: ...

    def __len__(self) -> int: ...

    def check_integrity(self) -> None:
        """Verify every invariant of the index; always allowed, at a cost linear in its size.

        Raises:
            StoreError: the bookkeeping and the vectors disagree. Cannot happen but by a bug or by broken memory.
        """
