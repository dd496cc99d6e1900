"""Which token slots of a preallocated pool are free: books only, no memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import NamedTuple

from inferscale_memory.errors import InvalidInputError, StoreError


class Extent(NamedTuple):
    """A run of slots ``[start, stop)``."""

    start: int
    stop: int


class SlotAllocator:
    """Hands out slots of ``0 .. capacity - 1``, in as few runs as the free ones allow.

    A request is refused only when fewer slots are free than it asks for: one that fits no single run is given several,
    so fragmentation costs locality, never capacity. Of the runs that are long enough the shortest is taken, which keeps
    long ones whole. Not thread-safe.

    Args:
        capacity: number of slots.

    Raises:
        InvalidInputError: the capacity is negative.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise InvalidInputError(f"capacity is {capacity} slots; wanted 0 or more.")
        self.capacity = capacity
        self.free_slots = capacity
        # The free runs: by start, to find neighbours, and by length, to find a fit.
        self._starts: list[int] = []
        self._stop_of: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        if capacity:
            self._remember(0, capacity)

    def allocate(self, count: int) -> tuple[Extent, ...] | None:
        """Take ``count`` slots; ``None`` when fewer are free, and then nothing has changed.

        Raises:
            InvalidInputError: ``count`` is not 1 or more.
        """
        if count < 1:
            raise InvalidInputError(f"{count} slots were asked for; wanted 1 or more.")
        if count > self.free_slots:
            return None
        taken = []
        while count:
            # The shortest run that is long enough, else the longest there is.
            at = min(bisect_left(self._by_length, (count, 0)), len(self._by_length) - 1)
            length, start = self._by_length[at]
            used = min(length, count)
            self._forget(start)
            if used < length:
                self._remember(start + used, start + length)
            taken.append(Extent(start, start + used))
            count -= used
            self.free_slots -= used
        return tuple(taken)

    def free(self, extents: tuple[Extent, ...]) -> None:
        """Give slots back, whole allocations or parts of them, and join them to their free neighbours.

        Raises:
            InvalidInputError: some of them are free already or do not exist. Extents before those have been freed.
        """
        for start, stop in extents:
            at = bisect_left(self._starts, start)
            before = self._starts[at - 1] if at else None
            after = self._starts[at] if at < len(self._starts) else self.capacity
            touches = before is not None and self._stop_of[before] == start
            if not 0 <= start < stop <= after or (before is not None and self._stop_of[before] > start):
                raise InvalidInputError(f"slots [{start}, {stop}) are not taken; the pool has {self.capacity} slots.")
            self.free_slots += stop - start
            if stop in self._stop_of:
                joined = self._stop_of[stop]
                self._forget(stop)
                stop = joined
            if touches:
                assert before is not None
                self._forget(before)
                start = before
            self._remember(start, stop)

    def free_runs(self) -> list[Extent]:
        """The free runs, in order."""
        return [Extent(start, self._stop_of[start]) for start in self._starts]

    def check_integrity(self) -> None:
        """Compare the books with each other.

        Raises:
            StoreError: they differ, free runs touch or overlap, or the count is wrong.
        """
        if sorted(self._stop_of) != self._starts:
            raise StoreError("the starts of free runs are recorded twice and differ.")
        runs = self.free_runs()
        if any(left.stop >= right.start for left, right in pairwise(runs)):
            raise StoreError("free runs of slots touch or overlap.")
        if runs and (runs[0].start < 0 or runs[-1].stop > self.capacity):
            raise StoreError(f"free runs reach outside the pool's {self.capacity} slots.")
        if sorted((run.stop - run.start, run.start) for run in runs) != self._by_length:
            raise StoreError("free runs by start and by length differ.")
        if sum(run.stop - run.start for run in runs) != self.free_slots:
            raise StoreError(f"{self.free_slots} slots are counted free, the free runs hold another number.")

    def _remember(self, start: int, stop: int) -> None:
        self._stop_of[start] = stop
        insort(self._starts, start)
        insort(self._by_length, (stop - start, start))

    def _forget(self, start: int) -> None:
        stop = self._stop_of.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_length[bisect_left(self._by_length, (stop - start, start))]
