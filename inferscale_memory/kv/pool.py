"""The host tier: chunks in host memory behind the arena, within a budget of bytes, least recently used out first."""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.kv.base import PutResult
from inferscale_memory.kv.chunk import Chunk


class ChunkPool:
    """A bounded LRU cache of chunks, a :class:`~inferscale_memory.kv.base.ChunkTier`.

    The budget counts the bytes of the storages that the tensors keep alive, which is what memory holds; the few hundred
    bytes of Python objects per chunk are not counted. ``used_bytes <= capacity_bytes`` holds at all times.

    A chunk handed out stays valid after its eviction, for as long as the caller holds it.

    Args:
        capacity_bytes: the budget; 0 keeps nothing.
        pin: keep copies in page-locked memory, from which a CUDA device reads without waiting.

    Raises:
        InvalidInputError: the budget is negative.
    """

    def __init__(self, capacity_bytes: int, *, pin: bool = False) -> None:
        if capacity_bytes < 0:
            raise InvalidInputError(f"capacity_bytes is {capacity_bytes}; wanted 0 (keep nothing) or more.")
        self.capacity_bytes = capacity_bytes
        self._pin = pin
        self._lock = threading.RLock()
        self._chunks: OrderedDict[str, Chunk] = OrderedDict()  # least recently used first
        self._sizes: dict[str, int] = {}
        self._volatile: set[str] = set()
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        return self._used

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def keys(self) -> tuple[str, ...]:
        """Keys of all chunks, least recently used first."""
        with self._lock:
            return tuple(self._chunks)

    def get(self, key: str) -> Chunk | None:
        """Return the chunk and mark it as just used, or None."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def find(self, key: str, fingerprint: str) -> Chunk | None:
        """Return the chunk if it was made by that model; see ``ChunkTier``."""
        chunk = self.get(key)
        return chunk if chunk is not None and chunk.fingerprint == fingerprint else None

    def exists(self, key: str) -> bool:
        """Whether the chunk is here; does not mark it as used."""
        return key in self._chunks

    def is_volatile(self, key: str) -> bool:
        """Whether the chunk is here and was put as ``volatile``."""
        return key in self._volatile

    def put(self, chunk: Chunk, *, volatile: bool = False) -> PutResult:
        """Keep ``chunk`` as the most recently used, making room if need be.

        A chunk larger than the whole budget is refused and nothing is evicted for it. A chunk that is a view of a much
        larger buffer is copied, so that the buffer can go.

        Args:
            chunk: what to keep; replaces one of the same key.
            volatile: no slower tier has it, so that its eviction loses it. Only remembered, for ``is_volatile``: it is
                evicted and swept like any other, since keeping what was deleted elsewhere would be worse.
        """
        chunk = chunk.pinned() if self._pin else chunk.compact()
        size = _pinned_bytes(chunk) if self._pin else chunk.footprint
        if size > self.capacity_bytes:
            return PutResult(stored=False)
        with self._lock:
            self._remove(chunk.key)
            evicted = []
            while self._used + size > self.capacity_bytes:
                oldest = next(iter(self._chunks))
                self._remove(oldest)
                evicted.append(oldest)
            self._chunks[chunk.key] = chunk
            self._sizes[chunk.key] = size
            self._used += size
            if volatile:
                self._volatile.add(chunk.key)
            return PutResult(stored=True, evicted=tuple(evicted))

    def evict(self, keys: Iterable[str]) -> int:
        """Drop these chunks; unknown keys are ignored. Returns how many were here."""
        with self._lock:
            return sum(self._remove(key) for key in keys)

    def delete(self, keys: Iterable[str]) -> int:
        """``evict`` for good: page-locked copies, which are this pool's own and are not given back, are overwritten."""
        wanted = list(keys)
        with self._lock:
            own = [self._chunks[key] for key in wanted if self._pin and key in self._chunks]
            count = self.evict(wanted)
        for chunk in own:
            chunk.keys.zero_()
            chunk.values.zero_()
        return count

    def clear(self) -> None:
        """Drop everything."""
        self.evict(self.keys())

    def sweep(self, keep: Callable[[str], bool]) -> tuple[str, ...]:
        """Drop every chunk that ``keep`` says no to, such as ``ChunkStore.exists`` after its generation changed.

        ``keep`` is called without the lock held and may be slow.

        Returns:
            Keys of what was dropped.
        """
        dropped = tuple(key for key in self.keys() if not keep(key))
        self.evict(dropped)
        return dropped

    def check_integrity(self) -> None:
        """Recount; see ``ChunkTier``.

        Raises:
            StoreError: the books differ from the content, or the budget is exceeded.
        """
        with self._lock:
            measure = _pinned_bytes if self._pin else operator.attrgetter("footprint")
            counted = {key: measure(chunk) for key, chunk in self._chunks.items()}
            if counted != self._sizes or sum(counted.values()) != self._used:
                raise StoreError(f"pool books say {self._used} bytes, content is {sum(counted.values())} bytes.")
            if any(key != chunk.key for key, chunk in self._chunks.items()):
                raise StoreError("a chunk stands under another chunk's key.")
            if not self._volatile <= self._chunks.keys():
                raise StoreError(f"{len(self._volatile - self._chunks.keys())} volatile keys have no chunk.")
            if self._used > self.capacity_bytes:
                raise StoreError(f"pool holds {self._used} bytes, its budget is {self.capacity_bytes}.")

    def _remove(self, key: str) -> bool:
        if self._chunks.pop(key, None) is None:
            return False
        self._used -= self._sizes.pop(key)
        self._volatile.discard(key)
        return True


def _pinned_bytes(chunk: Chunk) -> int:
    """What page-locked tensors take: torch rounds each up to a power of two."""
    return sum(1 << (tensor.nbytes - 1).bit_length() for tensor in (chunk.keys, chunk.values))
