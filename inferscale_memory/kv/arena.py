"""The device tier: one preallocated pool of token slots, from which a prompt is filled in one gather."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from inferscale_memory._extras import require
from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.kv.base import PutResult
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.slots import Extent, SlotAllocator
from inferscale_memory.kv.streams import CopyStream

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Resident:
    """A chunk in the arena: where its rows are, and what it is. Valid while its arena is held, see ``Arena.hold``."""

    key: str
    slots: np.ndarray
    """int64 ``[T]``: the slot of each token, the same in every layer."""
    tokens: np.ndarray
    """int32 ``[T]``."""
    extents: tuple[Extent, ...]
    chunk: Chunk
    """Its names and numbers; its tensors have shapes and no content (``meta``)."""


class Arena:
    """Keys ``[L, S, H, D]`` and values alike for ``S`` token slots, and the books of whose chunk has which.

    A :class:`~inferscale_memory.kv.base.ChunkTier`, least recently used out first. A chunk's slots are the same in
    every layer, so one list of slots gathers a prompt of any number of chunks, without concatenating, cloning or
    zero-filling. Slots are given out one by one if need be (see ``SlotAllocator``), so nothing is lost to
    fragmentation. The memory is taken once, ``S`` being what the budget holds; on a CPU the system commits it as it is
    first used. Slots that are given back are overwritten: attention states can be turned back into text.

    Books are locked, so that chunks may be put by one thread while another locates them. On a CUDA device copies run
    on a stream of their own, ordered against the gathers by events; nothing waits on the host.

    Args:
        layer_names: the engine's names of the ``L`` layers, in order.
        kv_heads: ``H``, of this rank.
        head_dim: ``D``.
        dtype: of the model.
        device: of the engine.
        capacity_bytes: the budget; ``used`` and preallocated bytes never exceed it.

    Raises:
        InvalidInputError: the budget does not hold one token.
    """

    def __init__(
        self,
        layer_names: tuple[str, ...],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity_bytes: int,
    ) -> None:
        library = require("torch", "cpu", "the KV arena")
        self.bytes_per_token = 2 * len(layer_names) * kv_heads * head_dim * dtype.itemsize
        capacity = capacity_bytes // self.bytes_per_token
        if capacity < 1:
            raise InvalidInputError(
                f"the arena's budget is {capacity_bytes} bytes, one token of this model takes {self.bytes_per_token}. "
                "Give it room for the facts of a prompt at least."
            )
        self.layer_names = layer_names
        shape = (len(layer_names), capacity, kv_heads, head_dim)
        self.keys: torch.Tensor = library.empty(shape, dtype=dtype, device=device)
        self.values: torch.Tensor = library.empty(shape, dtype=dtype, device=device)
        self._copies = CopyStream(device)
        self._slots = SlotAllocator(capacity)
        self._lock = threading.RLock()
        self._chunks: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._volatile: set[str] = set()
        self._holders = 0
        self._held: set[str] = set()
        self.evicted: deque[str] = deque()
        """Keys that had to make room, for whoever keeps track of what is here and takes them out."""
        self._leaving: list[Resident] = []  # replaced or deleted while held: their slots are freed afterwards

    # -- size ----------------------------------------------------------------------------------------------------------

    @property
    def capacity_tokens(self) -> int:
        """``S``."""
        return self._slots.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the preallocated memory."""
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def used_tokens(self) -> int:
        """Slots that are taken."""
        return self._slots.capacity - self._slots.free_slots

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def all_keys(self) -> tuple[str, ...]:
        """Keys of all chunks, least recently used first."""
        with self._lock:
            return tuple(self._chunks)

    # -- reading -------------------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While open, what is located stays where it is: neither evicted, nor replaced, nor overwritten."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            self._copies.reads_enqueued()
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._held.clear()
                    leaving, self._leaving = self._leaving, []
                    for resident in leaving:
                        self._release(resident)

    def locate(self, key: str) -> Resident | None:
        """Where a chunk is, marked as just used; call it within ``hold``, or the answer may be outdated at once."""
        with self._lock:
            resident = self._chunks.get(key)
            if resident is not None:
                self._chunks.move_to_end(key)
                if self._holders:
                    self._held.add(key)
            return resident

    def before_reading(self) -> None:
        """Order what is enqueued next on the device behind every copy into the arena so far."""
        self._copies.before_reading()

    def find(self, key: str, fingerprint: str) -> Chunk | None:
        """Return a copy of the chunk if it was made by that model; see ``ChunkTier``."""
        library = require("torch", "cpu", "the KV arena")
        with self.hold():
            resident = self.locate(key)
            if resident is None or resident.chunk.fingerprint != fingerprint:
                return None
            self.before_reading()
            rows = library.from_numpy(resident.slots).to(self.keys.device)
            keys, values = self.keys.index_select(1, rows), self.values.index_select(1, rows)
            return replace(resident.chunk, keys=keys, values=values)

    def exists(self, key: str) -> bool:
        """Whether the chunk is here; does not mark it as used."""
        return key in self._chunks

    def is_volatile(self, key: str) -> bool:
        """Whether the chunk is here and was put as ``volatile``."""
        return key in self._volatile

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, chunk: Chunk, *, volatile: bool = False, held: bool = False) -> PutResult:
        """Copy ``chunk`` in as the most recently used, making room if need be.

        Refused, with nothing changed: a chunk of another shape or dtype than the arena, one larger than the whole
        arena, and one for which only chunks that are held would have to go.

        Args:
            chunk: on any device.
            volatile: no slower tier has it, so that its eviction loses it: others go first.
            held: hold it as ``locate`` would, so that it is still here when the caller locates it.
        """
        if not self._fits(chunk):
            return PutResult(stored=False)
        with self._lock:
            room = self._make_room(chunk.num_tokens, keep=chunk.key)
            if room is None:
                return PutResult(stored=False)
            extents, evicted = room
            self.evicted.extend(evicted)
        try:
            self._copy_in(chunk, extents)
        except BaseException:
            with self._lock:
                self._slots.free(extents)
            raise
        resident = Resident(
            key=chunk.key,
            slots=np.concatenate([np.arange(extent.start, extent.stop, dtype=np.int64) for extent in extents]),
            tokens=np.asarray(chunk.token_ids, dtype=np.int32),
            extents=extents,
            chunk=replace(chunk, keys=chunk.keys.to("meta"), values=chunk.values.to("meta")),
        )
        with self._lock:
            self._take_out(chunk.key)
            self._chunks[chunk.key] = resident
            if volatile:
                self._volatile.add(chunk.key)
            if held and self._holders:
                self._held.add(chunk.key)
        return PutResult(stored=True, evicted=evicted)

    def delete(self, keys: Iterable[str]) -> int:
        """Remove these chunks and overwrite them, held ones when they are let go; unknown keys are ignored."""
        with self._lock:
            return sum(self._take_out(key) for key in keys)

    def clear(self) -> None:
        """Remove everything."""
        self.delete(self.all_keys())

    def sweep(self, keep: Callable[[str], bool]) -> tuple[str, ...]:
        """Remove every chunk that ``keep`` says no to; it is called without the lock and may be slow.

        Returns:
            Keys of what was removed.
        """
        dropped = tuple(key for key in self.all_keys() if not keep(key))
        self.delete(dropped)
        return dropped

    def check_integrity(self) -> None:
        """Compare the books with each other; see ``ChunkTier``.

        Raises:
            StoreError: a slot has two chunks or none, or the books of free slots are wrong.
        """
        with self._lock:
            self._slots.check_integrity()
            residents = [*self._chunks.values(), *self._leaving]
            taken = [extent for resident in residents for extent in resident.extents]
            runs = sorted([*taken, *self._slots.free_runs()])
            ends = [0, *(run.stop for run in runs)]
            if [run.start for run in runs] != ends[:-1] or ends[-1] != self.capacity_tokens:
                raise StoreError("slots of the arena belong to two chunks or to nobody.")
            if any(key != resident.key for key, resident in self._chunks.items()):
                raise StoreError("a chunk stands under another chunk's key.")
            if any(len(resident.slots) != resident.chunk.num_tokens for resident in residents):
                raise StoreError("a chunk has more or fewer slots than tokens.")
            if not self._volatile <= self._chunks.keys():
                raise StoreError(f"{len(self._volatile - self._chunks.keys())} volatile keys have no chunk.")

    # -- below ---------------------------------------------------------------------------------------------------------

    def _fits(self, chunk: Chunk) -> bool:
        layers, tokens, heads, dim = chunk.keys.shape
        mine = (self.keys.shape[0], *self.keys.shape[2:], self.keys.dtype)
        return (layers, heads, dim, chunk.keys.dtype) == mine and tokens <= self.capacity_tokens

    def _make_room(self, count: int, keep: str) -> tuple[tuple[Extent, ...], tuple[str, ...]] | None:
        """Slots for ``count`` tokens, and whom they were taken from."""
        free, victims = self._slots.free_slots, []
        # An older chunk of the same key goes in any case; its slots may serve the new one.
        same = self._chunks.get(keep)
        if same is not None and keep not in self._held:
            free += same.chunk.num_tokens
        for key in self._by_worth():
            if free >= count:
                break
            if key not in self._held and key != keep:
                victims.append(key)
                free += self._chunks[key].chunk.num_tokens
        if free < count:
            return None
        for key in (*victims, keep):
            if key not in self._held:
                self._take_out(key)
        extents = self._slots.allocate(count)
        assert extents is not None
        return extents, tuple(victims)

    def _by_worth(self) -> Iterator[str]:
        """All keys: what can be had again before what would be lost, of each the least recently used first."""
        yield from (key for key in self._chunks if key not in self._volatile)
        yield from (key for key in self._chunks if key in self._volatile)

    def _take_out(self, key: str) -> bool:
        resident = self._chunks.pop(key, None)
        if resident is None:
            return False
        self._volatile.discard(key)
        if key in self._held:
            self._held.discard(key)
            self._leaving.append(resident)
        else:
            self._release(resident)
        return True

    def _release(self, resident: Resident) -> None:
        with self._copies.writing(after_current=False):
            for start, stop in resident.extents:
                self.keys[:, start:stop].zero_()
                self.values[:, start:stop].zero_()
        self._slots.free(resident.extents)

    def _copy_in(self, chunk: Chunk, extents: tuple[Extent, ...]) -> None:
        device = self.keys.device
        with self._copies.writing(after_current=chunk.keys.is_cuda):
            # To the device in one piece, then to its rows: strided copies from the host would go through a temporary.
            keys = chunk.keys.to(device, non_blocking=True)
            values = chunk.values.to(device, non_blocking=True)
            self._copies.uses(chunk.keys, chunk.values)
            at = 0
            for start, stop in extents:
                here = slice(at, at + stop - start)
                self.keys[:, start:stop].copy_(keys[:, here])
                self.values[:, start:stop].copy_(values[:, here])
                at += stop - start
