"""The contract of every place where chunks are kept: disk, worker memory, and those to come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from inferscale_memory.kv.chunk import Chunk


class PutResult(NamedTuple):
    """What a tier did with a chunk it was offered."""

    stored: bool
    """Whether the chunk can now be found."""
    evicted: tuple[str, ...] = ()
    """Keys of other chunks that had to leave this tier, oldest use first."""


class ChunkTier(Protocol):
    """A place that keeps chunks.

    Whoever implements it promises:

    * A tier is a cache. A miss is never an error, and losing a chunk costs time, not correctness.
    * Fail closed: what cannot be shown to be whole and of the asked model is a miss.
    * Methods may be called from any thread; tiers on disk also from any number of processes.
    * Chunks are immutable. A tier neither writes to a chunk it was given nor hands out one it will write to.
    """

    def find(self, key: str, fingerprint: str) -> Chunk | None:
        """Return the chunk, whole and made by that model, or None for a miss of any kind.

        May change which chunk is evicted next, nothing else.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether ``find`` is likely to succeed. Cheap; reads no content, and is no use of the chunk."""
        ...

    def put(self, chunk: Chunk) -> PutResult:
        """Keep ``chunk``, replacing one of the same key.

        All or nothing: after a refusal (``stored`` false) or an error the tier is as before.

        Raises:
            StoreError: the medium cannot be written.
        """
        ...

    def delete(self, keys: Iterable[str]) -> int:
        """Remove these chunks for good; unknown keys are ignored.

        A ``find`` that begins after this returns misses, in every process. Persistent tiers overwrite the content.

        Returns:
            How many of the keys were here.

        Raises:
            StoreError: something is left; all that could be removed has been.
        """
        ...

    def check_integrity(self) -> None:
        """Compare the tier's books with its content.

        Raises:
            StoreError: they differ.
        """
        ...
