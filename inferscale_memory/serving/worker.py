"""Worker side of the connector: capture into the store, gather, rotate and scatter into the paged cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.kv.arena import Arena
from inferscale_memory.kv.chunk import Chunk
from inferscale_memory.kv.pool import ChunkPool
from inferscale_memory.kv.store import ChunkStore
from inferscale_memory.serving.kernel_taps import compiled_tap
from inferscale_memory.serving.loading import Loader
from inferscale_memory.serving.metadata import CapturePiece, LoadRun, StepMetadata, WorkerReport
from inferscale_memory.serving.options import ConnectorOptions
from inferscale_memory.serving.prefetch import Prefetcher
from inferscale_memory.serving.protocol import TapReport, TierTokens
from inferscale_memory.serving.staging import Layer, Staging
from inferscale_memory.serving.support import refuse_layers
from inferscale_memory.serving.taps import ExactTap, Tap
from inferscale_memory.serving.writers import Writer, choose_writer

logger = logging.getLogger(__name__)


class WorkerSide:
    """Owns this rank's tap, its memory tiers and its view of the store."""

    def __init__(self, options: ConnectorOptions, *, block_size: int, rank: int, world: int) -> None:
        self.options = options
        self.fingerprint = options.fingerprint
        self.block_size = block_size
        self.store = ChunkStore(options.root, rank=rank, world=world)
        self.report = WorkerReport()
        self.tap: Tap | None = None
        self.loader: Loader | None = None
        self.layers: list[Layer] = []
        self._prefetcher: Prefetcher | None = None
        self._generation = self.store.generation()
        self._staging: dict[tuple[str, str], Staging] = {}
        self._ending: list[CapturePiece] = []
        self._bad_blocks: set[int] = set()
        self._preambles: set[str] = set()
        self._writer: Writer | None = None

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
            self.tap = compiled_tap(self.layers, self.block_size, kernels=self.options.kernels)
        else:
            self.tap = ExactTap(self.layers, self.block_size)
        try:
            self.loader = self._make_loader()
        except InvalidInputError as error:
            self.report.tap = TapReport("none", problem=str(error))
            self.close()
            self.tap = None
            return
        self._prefetcher = Prefetcher(self.loader)

    def _make_loader(self) -> Loader:
        layer, device = self.layers[0], self._device()
        names = tuple(layer.name for layer in self.layers)
        arena = Arena(names, layer.kv_heads, layer.head_dim, self._dtype(), device, self.options.arena_bytes)
        host = None
        if self.options.host_bytes:
            host = ChunkPool(self.options.host_bytes, pin=device.type == "cuda")
        return Loader(arena, host, self.store, self.fingerprint, block_size=self.block_size)

    def close(self) -> None:
        """Take the hooks out and free the memory tiers."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self.tap is not None:
            self.tap.close()
        if self.loader is not None:
            self.loader.arena.clear()
            if self.loader.host is not None:
                self.loader.host.clear()

    # -- asked for out of turn -----------------------------------------------------------------------------------------

    def prefetch(self, keys: Sequence[str]) -> None:
        """Bring chunks into the arena in the background; what cannot be had is left to the load."""
        if self._prefetcher is not None:
            self._prefetcher.ask(keys)

    def loaded(self) -> TierTokens:
        """Tokens loaded so far, by where they were found."""
        return self.loader.loaded if self.loader is not None else TierTokens()

    def drop(self, tier: str) -> None:
        """Forget the chunks of facts in ``"arena"``, or in ``"memory"`` (host memory too); for measurements."""
        if self.loader is None:
            return
        arena, host = self.loader.arena, self.loader.host
        arena.sweep(arena.is_volatile)
        if tier == "memory" and host is not None:
            host.clear()

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
        if generation == self._generation or self.loader is None:
            return
        self._generation = generation
        arena, host = self.loader.arena, self.loader.host
        keys = {*arena.all_keys(), *(host.keys() if host is not None else ())}
        gone = {key for key in keys - self._preambles if not self.store.exists(key, self.fingerprint)}
        self.loader.forget(gone)
        if gone and self._writer is not None:
            self._writer.wipe()
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
        if self.loader is None:  # nothing was captured either, so nobody asks
            return
        try:
            outcome = self.loader.load(runs, self._ready_writer())
        except Exception:  # whatever it is (out of memory, say), prefill is the answer, not a dead engine
            logger.exception("a load failed; its tokens are prefilled")
            outcome = self.loader.fail_all(runs, "load_failed")
        self._bad_blocks |= outcome.bad_blocks
        self.report.load_errors.update(outcome.errors)
        self.report.gone |= outcome.gone

    def _ready_writer(self) -> Writer | None:
        """What fills the caches; ``None`` while it is not known how each layer rotates."""
        if self._writer is None and self.tap is not None and self.loader is not None:
            rotators = [self.tap.rotator(index) for index in range(len(self.layers))]
            known = [rotator for rotator in rotators if rotator is not None]
            if len(known) == len(rotators):
                self._writer = choose_writer(self.loader.arena, self.layers, known, kernels=self.options.kernels)
        return self._writer

    # -- after the forward ---------------------------------------------------------------------------------------------

    def finish_step(self) -> None:
        """Store the chunks whose last rows were computed in this step."""
        if self.tap is None:
            return
        try:
            self.tap.after_forward()
        except Exception:  # a fact that is not encoded now is encoded again; the answers of this step stand
            logger.exception("captures of this step are lost")
            self.tap.disarm()
        for piece in self._ending:
            staging = self._staging.pop((piece.request_id, piece.key), None)
            if staging is not None:
                self._try_to_keep(piece, staging)
        self._ending = []

    def _try_to_keep(self, piece: CapturePiece, staging: Staging) -> None:
        try:
            self._keep(piece, staging)
        except StoreError as error:
            logger.error("a chunk could not be stored: %s", error)
        except Exception:  # out of memory, say: as above
            logger.exception("chunk %s is lost", piece.key[:12])

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
        assert self.loader is not None
        if not piece.volatile:
            self.loader.keep(chunk)
        result = self.loader.arena.put(chunk, volatile=piece.volatile)
        self._note_evicted()
        if piece.volatile and result.stored:
            self.report.gone.discard(piece.key)
            if piece.start == 0:
                self._preambles.add(piece.key)
            self.report.stored[piece.key] = 1

    def _note_evicted(self) -> None:
        if self.loader is not None:
            evicted = self.loader.arena.evicted
            while evicted:
                key = evicted.popleft()
                self._preambles.discard(key)
                self.report.gone.add(key)

    def drop_staged(self, finished: set[str]) -> None:
        """Forget half-captured chunks of finished and aborted requests."""
        for request_id, key in [pair for pair in self._staging if pair[0] in finished]:
            del self._staging[request_id, key]

    def take_bad_blocks(self) -> set[int]:
        """Blocks whose load failed since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_report(self) -> WorkerReport | None:
        """What happened since the last call, or ``None``."""
        self._note_evicted()
        report, self.report = self.report, WorkerReport()
        return report if report else None
