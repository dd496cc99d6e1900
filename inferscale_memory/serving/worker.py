"""Worker side of the connector: capture into the store, gather, rotate and scatter into the paged cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inferscale_memory.errors import ChunkError, StoreError
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.pool import ChunkPool
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving.metadata import CapturePiece, LoadChunk, LoadRun, StepMetadata, WorkerReport
from inferscale_memory.serving.protocol import TapReport
from inferscale_memory.serving.staging import Layer, Staging, on_device
from inferscale_memory.serving.support import refuse_layers
from inferscale_memory.serving.taps import ExactTap, Tap, UnrotatedTap

logger = logging.getLogger(__name__)


@dataclass
class Gather:
    """A run that can be loaded: its chunks, and where they stand."""

    run: LoadRun
    chunks: list[tuple[Chunk, LoadChunk]]


class WorkerSide:
    """Owns this rank's tap, its memory tier and its view of the store."""

    def __init__(
        self, root: Path, fingerprint: str, *, block_size: int, rank: int, world: int, pool_bytes: int
    ) -> None:
        self.fingerprint = fingerprint
        self.block_size = block_size
        self.store = ChunkStore(root, rank=rank, world=world)
        self.pool = ChunkPool(pool_bytes)
        self.report = WorkerReport()
        self.tap: Tap | None = None
        self.layers: list[Layer] = []
        self._generation = self.store.generation()
        self._staging: dict[tuple[str, str], Staging] = {}
        self._ending: list[CapturePiece] = []
        self._bad_blocks: set[int] = set()
        self._preambles: set[str] = set()
        self._scratch: tuple[torch.Tensor, torch.Tensor] | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def install(self, modules: dict[str, Any], *, compiled: bool) -> None:
        """Hook the taps into the loaded model's attention layers (in cache order), unless they cannot be injected."""
        refused = refuse_layers(modules)
        if refused:
            self.report.tap = TapReport("none", problem=refused)
            return
        self.layers = [
            Layer(name, module, module.impl.do_kv_cache_update, int(module.num_kv_heads), int(module.head_size))
            for name, module in modules.items()
        ]
        if compiled:
            self.tap = UnrotatedTap(self.layers, self.block_size, native=True)
        else:
            self.tap = ExactTap(self.layers, self.block_size)

    def close(self) -> None:
        """Take the hooks out and free the pool."""
        if self.tap is not None:
            self.tap.close()
        self.pool.clear()

    # -- before the forward --------------------------------------------------------------------------------------------

    def begin(self, metadata: StepMetadata) -> None:
        """Follow deletions, then arm the tap for this step's captures."""
        self._follow_deletions()
        self._ending = [piece for piece in metadata.captures if piece.stop == piece.end]
        if self.tap is None:
            return
        if metadata.captures:
            pieces = [(piece, self._stage(piece)) for piece in metadata.captures]
            self.tap.arm(pieces, self._device())
        else:
            self.tap.disarm()

    def _follow_deletions(self) -> None:
        # Some process deleted chunks: drop every copy whose file is gone. Chunks without a file may hold facts too,
        # except those that begin a prompt, which are preambles.
        generation = self.store.generation()
        if generation != self._generation:
            self._generation = generation
            gone = self.pool.sweep(lambda key: key in self._preambles or self.store.exists(key, self.fingerprint))
            self.report.gone.update(gone)

    def _device(self) -> torch.device:
        return self.layers[0].module.kv_cache.device

    def _stage(self, piece: CapturePiece) -> Staging:
        staging = self._staging.get((piece.request_id, piece.key))
        if staging is None:
            layer = self.layers[0]
            shape = (len(self.layers), piece.end - piece.start, layer.kv_heads, layer.head_dim)
            options: dict[str, Any] = {"dtype": self._dtype(), "device": self._device()}
            staging = Staging(
                start=piece.start,
                end=piece.end,
                keys=torch.empty(shape, **options),
                values=torch.empty(shape, **options),
                seen=torch.zeros(shape[:2], dtype=torch.bool),
                written=torch.empty(shape, **options) if piece.verify else None,
            )
            self._staging[piece.request_id, piece.key] = staging
        return staging

    def _dtype(self) -> torch.dtype:
        return self.layers[0].module.dtype

    # -- loading -------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def load(self, runs: list[LoadRun]) -> None:
        """Fill the covered prompt positions of all requests of this step; what fails is reported, not raised."""
        try:
            self._fill([gather for run in runs if (gather := self._gather(run)) is not None])
        except Exception:  # whatever it is (out of memory, say), prefill is the answer, not a dead engine
            logger.exception("a load failed; its tokens are prefilled")
            self._scratch = None
            for run in runs:
                self._fail(run, [], run.begin, "load_failed")

    def _fill(self, ready: list[Gather]) -> None:
        total = sum(gather.run.stop - gather.run.begin for gather in ready)
        if not total:
            return
        keys, values = self._buffers(total)
        positions, slots, at = [], [], 0
        for gather in ready:
            run = gather.run
            for chunk, place in gather.chunks:
                first, last = max(place.position, run.begin), min(place.position + place.length, run.stop)
                here = slice(at + first - run.begin, at + last - run.begin)
                there = slice(first - place.position, last - place.position)
                keys[:, here].copy_(chunk.keys[:, there])
                values[:, here].copy_(chunk.values[:, there])
            place_of = torch.arange(run.begin, run.stop)
            blocks = torch.tensor(run.block_ids)[place_of // self.block_size]
            positions.append(place_of)
            slots.append(blocks * self.block_size + place_of % self.block_size)
            at += run.stop - run.begin
        device = keys.device
        self._scatter(keys, values, torch.cat(positions).to(device), torch.cat(slots).to(device))

    def _gather(self, run: LoadRun) -> Gather | None:
        """Find the run's chunks; on a miss, keep the whole blocks before it and report the rest as bad."""
        tokens = np.frombuffer(run.tokens, dtype=np.int32)
        origin = run.chunks[0].position
        chunks: list[tuple[Chunk, LoadChunk]] = []
        for place in run.chunks:
            chunk, reason = self._find(place)
            if chunk is not None:
                want = tokens[place.position - origin : place.position - origin + place.length]
                if not np.array_equal(np.asarray(chunk.token_ids, dtype=np.int32), want):
                    chunk, reason = None, "chunk_of_other_tokens"
            if chunk is None:
                return self._fail(run, chunks, max(place.position, run.begin), reason)
            chunks.append((chunk, place))
        if self.tap is None or any(self.tap.rotator(index) is None for index in range(len(self.layers))):
            return self._fail(run, [], run.begin, "rotary_unknown")
        return Gather(run, chunks)

    def _find(self, place: LoadChunk) -> tuple[Chunk | None, str]:
        chunk = self.pool.get(place.key)
        if chunk is None:
            try:
                chunk = self.store.get(place.key, self.fingerprint)
            except ChunkError as error:
                logger.warning("chunk %s is a miss: %s", place.key[:12], error)
                self.report.gone.add(place.key)
                return None, "chunk_unreadable"
            chunk = on_device(chunk, self._device())
            evicted = self.pool.put(chunk).evicted
            self._preambles.difference_update(evicted)
            self.report.gone.update(evicted)
        if chunk.keys.shape[:2] != (len(self.layers), place.length):
            return None, "chunk_shape"
        return chunk, ""

    def _fail(self, run: LoadRun, chunks: list[tuple[Chunk, LoadChunk]], position: int, reason: str) -> Gather | None:
        first_bad = position // self.block_size
        last = (run.stop - 1) // self.block_size
        self._bad_blocks.update(run.block_ids[first_bad : last + 1])
        self.report.load_errors[run.request_id] = reason
        stop = first_bad * self.block_size
        if stop <= run.begin:
            return None
        kept = LoadRun(run.request_id, run.begin, stop, run.block_ids, run.chunks, run.tokens)
        return Gather(kept, [(chunk, place) for chunk, place in chunks if place.position < stop])

    def _buffers(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[layer, tokens, kv_head, head_dim]`` on the engine's device, reused between steps."""
        layer = self.layers[0]
        width = layer.kv_heads * layer.head_dim
        need = len(self.layers) * tokens * width
        if self._scratch is None or self._scratch[0].numel() < need:
            options: dict[str, Any] = {"dtype": self._dtype(), "device": self._device()}
            self._scratch = torch.empty(need, **options), torch.empty(need, **options)
        shape = (len(self.layers), tokens, layer.kv_heads, layer.head_dim)
        return self._scratch[0][:need].view(shape), self._scratch[1][:need].view(shape)

    def _scatter(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        assert self.tap is not None
        count, tokens = keys.shape[:2]
        rotators = [self.tap.rotator(index) for index in range(count)]
        rotated: torch.Tensor | list[torch.Tensor]
        first = rotators[0]
        assert first is not None
        if all(rotator.module is first.module for rotator in rotators if rotator is not None):
            flat = keys.view(count * tokens, -1)
            rotated = first(positions.repeat(count), flat).view(keys.shape)
        else:
            rotated = [
                rotator(positions, keys[index].view(tokens, -1)).view(keys.shape[1:])
                for index, rotator in enumerate(rotators)
                if rotator is not None
            ]
        for index, layer in enumerate(self.layers):
            layer.write(layer.module, rotated[index], values[index], layer.module.kv_cache, slots)

    # -- after the forward ---------------------------------------------------------------------------------------------

    def finish_step(self) -> None:
        """Store the chunks whose last rows were computed in this step."""
        if self.tap is None:
            return
        self.tap.disarm()
        for piece in self._ending:
            staging = self._staging.pop((piece.request_id, piece.key), None)
            if staging is not None:
                self._keep(piece, staging)
        self._ending = []

    def _keep(self, piece: CapturePiece, staging: Staging) -> None:
        assert self.tap is not None
        assert piece.tokens is not None
        assert piece.context is not None
        keys = self.tap.pre_rope(staging)
        if piece.verify:
            self.report.tap = self.tap.verify(staging, keys)
            if self.report.tap.problem:
                return
        if not staging.complete:
            rows = int(staging.seen.all(dim=0).sum())
            logger.error("chunk %s: %d of %d rows were captured", piece.key[:12], rows, piece.end - piece.start)
            return
        chunk = Chunk(
            key=piece.key,
            token_ids=tuple(np.frombuffer(piece.tokens, dtype=np.int32).tolist()),
            fingerprint=self.fingerprint,
            context_digest=piece.context,
            layer_names=tuple(layer.name for layer in self.layers),
            keys=keys.contiguous(),
            values=staging.values,
            rank=self.store.rank,
            world=self.store.world,
        )
        if not piece.volatile:
            try:
                self.store.put(chunk)
            except StoreError as error:
                logger.error("a chunk could not be stored: %s", error)
                return
        result = self.pool.put(chunk, volatile=piece.volatile)
        self._preambles.difference_update(result.evicted)
        self.report.gone.update(result.evicted)
        if piece.volatile and result.stored:
            self.report.gone.discard(piece.key)
            if piece.start == 0:
                self._preambles.add(piece.key)
            self.report.stored[piece.key] = 1

    def drop(self, finished: set[str]) -> None:
        """Forget half-captured chunks of finished and aborted requests."""
        for request_id, key in [pair for pair in self._staging if pair[0] in finished]:
            del self._staging[request_id, key]

    def take_bad_blocks(self) -> set[int]:
        """Blocks whose load failed since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_report(self) -> WorkerReport | None:
        """What happened since the last call, or ``None``."""
        report, self.report = self.report, WorkerReport()
        return report if report else None
