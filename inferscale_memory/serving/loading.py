"""Bringing chunks into the device arena from slower tiers, and filling prompts from it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inferscale_memory.errors import ChunkError
from inferscale_memory.kv.arena import Arena, Resident
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.pool import ChunkPool
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving.metadata import LoadRun
from inferscale_memory.serving.protocol import TierTokens
from inferscale_memory.serving.writers import Rows, Writer

logger = logging.getLogger(__name__)


class _ArenaFullError(Exception):
    """Everything in the arena is held by this load."""


@dataclass
class LoadOutcome:
    """What a step's loads could not do."""

    bad_blocks: set[int] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)  # request -> reason
    gone: set[str] = field(default_factory=set)  # chunks that turned out unreadable


class Loader:
    """The tiers of one worker: device arena, host memory, disk.

    ``fetch`` may be called from any thread, ``load`` from the engine's only.

    Args:
        arena: the device tier.
        host: chunks in (pinned) host memory, ``None`` where the device is the host.
        store: the disk tier.
        fingerprint: of the model; chunks of another are misses.
        block_size: tokens per cache block.
    """

    def __init__(
        self, arena: Arena, host: ChunkPool | None, store: ChunkStore, fingerprint: str, *, block_size: int
    ) -> None:
        self.arena, self.host, self.store = arena, host, store
        self.fingerprint = fingerprint
        self.block_size = block_size
        self.loaded = TierTokens()

    # -- fetching ------------------------------------------------------------------------------------------------------

    def fetch(self, key: str, *, held: bool = False) -> str | None:
        """Bring a chunk into the arena, and say from which tier; ``None`` when it does not fit there now, or never.

        Args:
            key: of the chunk.
            held: hold it there, see ``Arena.put``.

        Raises:
            ChunkError: no tier has it whole.
        """
        # Compared with what it is afterwards: a chunk deleted meanwhile, by any process, must not come back to life.
        generation = self.store.generation()
        chunk = self.host.find(key, self.fingerprint) if self.host is not None else None
        tier = "host"
        if chunk is None:
            tier = "disk"
            chunk = self.store.get(key, self.fingerprint)
            self._into_host(chunk)
        result = self.arena.put(chunk, held=held)
        # Host memory may not have followed the last deletion yet.
        suspect = tier == "host" or self.store.generation() != generation
        if suspect and not self.store.exists(key, self.fingerprint):
            self.forget([key])
            raise ChunkError(f"chunk {key[:12]} was deleted while it was read.")
        return tier if result.stored else None

    def _into_host(self, chunk: Chunk) -> None:
        if self.host is not None:
            try:
                self.host.put(chunk)
            except RuntimeError as error:  # no more memory can be pinned: then it comes from disk the next time too
                logger.warning("chunk %s is not kept in host memory: %s", chunk.key[:12], error)

    def keep(self, chunk: Chunk) -> None:
        """Write a new chunk to disk, and to host memory where that is a tier of its own.

        Raises:
            StoreError: it could not be written.
        """
        if chunk.keys.is_cuda:  # copied from the device once, for both
            chunk = replace(chunk, keys=chunk.keys.cpu(), values=chunk.values.cpu())
        self.store.put(chunk)
        self._into_host(chunk)

    def forget(self, keys: Iterable[str]) -> None:
        """Take chunks out of both memories."""
        wanted = list(keys)
        self.arena.delete(wanted)
        if self.host is not None:
            self.host.delete(wanted)

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self, runs: Sequence[LoadRun], writer: Writer | None) -> LoadOutcome:
        """Fill the covered prompt positions of all requests of a step, in as few passes as the arena allows: one.

        A miss keeps the whole blocks before it and reports the rest.
        """
        outcome = LoadOutcome()
        waiting = list(runs)
        while waiting:
            with self.arena.hold():
                ready: list[Rows] = []
                while waiting:
                    try:
                        rows = self._gather(waiting[0], writer, outcome, alone=not ready)
                    except _ArenaFullError:
                        break  # let go of what the others hold, then go on
                    waiting.pop(0)
                    if rows is not None:
                        ready.append(rows)
                if ready and writer is not None:
                    self.arena.before_reading()
                    writer.write(Rows.joined(ready))
        return outcome

    def _gather(self, run: LoadRun, writer: Writer | None, outcome: LoadOutcome, *, alone: bool) -> Rows | None:
        if writer is None:
            self._fail(run, run.begin, "rotary_unknown", outcome)
            return None
        found, reason = self._residents(run, outcome, alone=alone)
        tokens = np.frombuffer(run.tokens, dtype=np.int32)
        if found:
            there = np.concatenate([resident.tokens for resident in found])
            if not np.array_equal(there, tokens[: len(there)]):
                differs = int(np.argmax(there != tokens[: len(there)]))
                keep = next(at for at, end in enumerate(run.ends) if end - run.start > differs)
                found, reason = found[:keep], "chunk_of_other_tokens"
        stop = run.stop
        if reason:
            bad_from = max(run.ends[len(found) - 1] if found else run.start, run.begin)
            stop = self._fail(run, bad_from, reason, outcome)
        if stop <= run.begin:
            return None
        slots = np.concatenate([resident.slots for resident in found])[run.begin - run.start : stop - run.start]
        return Rows.of_prompt(slots, run.begin, run.block_ids, self.block_size)

    def _residents(self, run: LoadRun, outcome: LoadOutcome, *, alone: bool) -> tuple[list[Resident], str]:
        """The run's chunks up to the first that cannot be had, and why that cannot.

        Raises:
            _ArenaFullError: there is no room beside what others of this load hold.
        """
        found: list[Resident] = []
        start, reason, count = run.start, "", Counter[str]()
        for key, end in zip(run.keys, run.ends, strict=True):
            resident, tier = self.arena.locate(key), "arena"
            if resident is None:
                try:
                    fetched = self.fetch(key, held=True)
                except ChunkError as error:
                    logger.warning("chunk %s is a miss: %s", key[:12], error)
                    outcome.gone.add(key)
                    reason = "chunk_unreadable"
                    break
                resident = self.arena.locate(key) if fetched else None
                if resident is None and not alone:
                    raise _ArenaFullError
                if resident is None:
                    reason = "arena_too_small"
                    break
                tier = fetched or tier
            if len(resident.slots) != end - start:
                reason = "chunk_shape"
                break
            found.append(resident)
            count[tier] += end - start
            start = end
        self.loaded = TierTokens(*(old + count[name] for name, old in self.loaded._asdict().items()))
        return found, reason

    def _fail(self, run: LoadRun, position: int, reason: str, outcome: LoadOutcome) -> int:
        """Give up the run from the block of ``position`` on; returns where it now stops."""
        first_bad = position // self.block_size
        last = (run.stop - 1) // self.block_size
        outcome.bad_blocks.update(run.block_ids[first_bad : last + 1])
        outcome.errors[run.request_id] = reason
        return first_bad * self.block_size

    def fail_all(self, runs: Sequence[LoadRun], reason: str) -> LoadOutcome:
        """Give up whole runs."""
        outcome = LoadOutcome()
        for run in runs:
            self._fail(run, run.begin, reason, outcome)
        return outcome
