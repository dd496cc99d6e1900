"""The bookkeeping that every index shares: which id stands in which row of which group's matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.retrieval.base import Hit
from inferscale_memory.retrieval.vectors import check_k, ranked, unit_rows

EXACT_MARGIN = 1e-5
"""How far a float32 inner product of unit vectors may be off. ``Rows.candidates`` keeps all that come this close to
the k-th best; they are ranked again in float64, so that ties fall the same way on every backend."""


class Rows(ABC):
    """A growing matrix ``[n, dim]`` of float32 unit rows, wherever a backend keeps it. Not thread-safe."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def append(self, vectors: np.ndarray) -> None:
        """Add ``[m, dim]`` rows at the end."""

    @abstractmethod
    def replace(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Overwrite the rows numbered ``rows`` (int64 ``[m]``, distinct) by ``[m, dim]`` vectors."""

    @abstractmethod
    def remove(self, row: int) -> None:
        """Move the last row into ``row`` and drop the last. The vacated memory is overwritten with zeros."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy the rows numbered ``rows`` to the host: ``[m, dim]`` float32."""

    @abstractmethod
    def candidates(self, query: np.ndarray, k: int, rows: np.ndarray | None) -> np.ndarray:
        """Row numbers of the ``k`` largest inner products with ``query``, in any order.

        All that come within the backend's rounding error of the k-th are in it too, so it may hold more than ``k``.

        Args:
            query: ``[dim]`` float32 unit vector.
            k: at least 1; may exceed the number of rows.
            rows: where given, the only rows that are looked at.
        """


@dataclass
class _Group:
    rows: Rows
    ids: list[str] = field(default_factory=list)  # row number -> id


class GroupedIndex(ABC):
    """A ``VectorIndex`` over one ``Rows`` per group (see ``base.VectorIndex`` for the contract).

    One lock guards everything, searches included: a group holds one user's facts, so a search takes well under a
    millisecond for thousands of them, and the arithmetic is parallel by itself.

    Args:
        dim: length of the vectors; None takes it from the first ``upsert``.
    """

    def __init__(self, dim: int | None = None) -> None:
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim <= 0):
            raise InvalidInputError(f"dim is {dim!r}, want a positive integer or None.")
        self.dim = dim
        self._lock = RLock()
        self._groups: dict[str, _Group] = {}
        self._where: dict[str, tuple[str, int]] = {}  # id -> group, row number

    @abstractmethod
    def _new_rows(self, dim: int) -> Rows:
        """Make an empty matrix."""

    def upsert(self, ids: Sequence[str], vectors: np.ndarray, group: str) -> None:
        """Insert or replace vectors (see ``VectorIndex.upsert``)."""
        with self._lock:
            units = unit_rows(vectors, ids, self.dim)
            if not ids:
                return
            self.dim = units.shape[1]
            last = {id: i for i, id in enumerate(ids)}
            self.delete([id for id in last if id in self._where and self._where[id][0] != group])
            known = [id for id in last if id in self._where]
            fresh = [id for id in last if id not in self._where]
            target = self._groups.get(group) or _Group(self._new_rows(self.dim))
            if known:
                numbers = np.array([self._where[id][1] for id in known], dtype=np.int64)
                target.rows.replace(numbers, units[[last[id] for id in known]])
            if fresh:
                target.rows.append(units[[last[id] for id in fresh]])
                self._where.update({id: (group, len(target.ids) + i) for i, id in enumerate(fresh)})
                target.ids.extend(fresh)
            self._groups[group] = target

    def delete(self, ids: Collection[str]) -> int:
        """Forget ``ids`` (see ``VectorIndex.delete``)."""
        with self._lock:
            held = [id for id in dict.fromkeys(ids) if id in self._where]
            for id in held:
                name, row = self._where.pop(id)
                group = self._groups[name]
                group.rows.remove(row)
                mover = group.ids.pop()
                if mover != id:
                    group.ids[row] = mover
                    self._where[mover] = (name, row)
                if not group.ids:
                    del self._groups[name]
            return len(held)

    def search(self, vector: np.ndarray, k: int, group: str, allowed: Collection[str] | None = None) -> list[Hit]:
        """Find the ``k`` best of ``group`` (see ``VectorIndex.search``)."""
        k = check_k(k)
        with self._lock:
            query = unit_rows(np.asarray(vector)[None], ["the query"], self.dim)[0]
            target = self._groups.get(group)
            if target is None:
                return []
            rows = None
            if allowed is not None:
                rows = self._rows_of(allowed, group)
                if not rows.size:
                    return []
            found = target.rows.candidates(query, k, rows)
            return ranked([target.ids[row] for row in found.tolist()], target.rows.take(found), query, k)

    def search_many(
        self,
        vectors: np.ndarray,
        k: int,
        groups: Sequence[str],
        allowed: Sequence[Collection[str] | None] | None = None,
    ) -> list[list[Hit]]:
        """One search after the other (see ``VectorIndex.search_many``): on a CPU nothing is gained by more."""
        limits = check_many(vectors, groups, allowed)
        with self._lock:
            return [self.search(*asked) for asked in zip(vectors, [k] * len(groups), groups, limits, strict=True)]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Copy the stored vectors out (see ``VectorIndex.vectors``)."""
        with self._lock:
            out = np.empty((len(ids), self.dim or 0), dtype=np.float32)
            by_group: dict[str, list[int]] = {}
            for i, id in enumerate(ids):
                if id not in self._where:
                    raise KeyError(f"no vector is held for {id!r}.")
                by_group.setdefault(self._where[id][0], []).append(i)
            for name, places in by_group.items():
                numbers = np.array([self._where[ids[i]][1] for i in places], dtype=np.int64)
                out[places] = self._groups[name].rows.take(numbers)
            return out

    def _rows_of(self, ids: Collection[str], group: str) -> np.ndarray:
        """Row numbers of those of ``ids`` that are in ``group``, ascending."""
        places = (self._where.get(id, ("", -1)) for id in set(ids))
        return np.array(sorted(row for name, row in places if row >= 0 and name == group), dtype=np.int64)

    def __contains__(self, id: object) -> bool:
        with self._lock:
            return id in self._where

    def __len__(self) -> int:
        with self._lock:
            return len(self._where)

    def check_integrity(self) -> None:
        """Verify that ids, rows and vectors agree (see ``VectorIndex.check_integrity``)."""
        with self._lock:
            for name, group in self._groups.items():
                if not group.ids or len(group.rows) != len(group.ids):
                    raise StoreError(f"group {name!r} has {len(group.rows)} rows for {len(group.ids)} ids.")
                for row, id in enumerate(group.ids):
                    if self._where.get(id) != (name, row):
                        raise StoreError(f"{id!r} is in row {row} of {name!r}, recorded as {self._where.get(id)}.")
                lengths = np.linalg.norm(group.rows.take(np.arange(len(group.ids))), axis=1)
                if not (np.abs(lengths - 1.0) < 1e-4).all():
                    raise StoreError(f"group {name!r} holds a vector that is not of length 1.")
            if sum(len(group.ids) for group in self._groups.values()) != len(self._where):
                raise StoreError("an id is recorded that stands in no group.")


def check_many(
    vectors: np.ndarray, groups: Sequence[str], allowed: Sequence[Collection[str] | None] | None
) -> Sequence[Collection[str] | None]:
    """``allowed`` for each group.

    Raises:
        InvalidInputError: there is not one of each for every vector.
    """
    limits = [None] * len(groups) if allowed is None else allowed
    if not len(vectors) == len(groups) == len(limits):
        raise InvalidInputError(
            f"got {len(vectors)} vectors, {len(groups)} groups and {len(limits)} sets of allowed ids; want one of each "
            "per search."
        )
    return limits
