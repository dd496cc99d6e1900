"""Bringing recalled chunks into a worker's memory before the question arrives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait

import torch

from inferscale_memory.daemons import BusyError, DaemonPool
from inferscale_memory.errors import InferScaleError
from inferscale_memory.serving import compat
from inferscale_memory.serving.loading import Loader

logger = logging.getLogger(__name__)

MAX_WAITING = 64
"""Recalls that may wait; more than that are dropped, the loads of their questions fetch for themselves."""


class Prefetcher:
    """Fetches what it is asked for in a thread of its own, oldest first."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._pool = DaemonPool(1, MAX_WAITING)
        self._last: Future[None] | None = None
        self._closed = False

    def ask(self, keys: Sequence[str]) -> None:
        """Fetch these chunks soon; returns at once."""
        missing = [key for key in keys if key not in self._loader.arena]
        if not missing or self._closed:
            return
        try:
            self._last = self._pool.submit(lambda: self._fetch_all(missing))
        except BusyError:
            logger.debug("%d chunks are not prefetched: %d recalls wait already.", len(missing), MAX_WAITING)

    def close(self) -> None:
        """Stop after the chunk that is under way."""
        self._closed = True
        if self._last is not None:
            wait([self._last])  # those before it have ended by then

    def _fetch_all(self, keys: Sequence[str]) -> None:
        device = self._loader.arena.keys.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # per thread; pinning memory would go to the first device
        for key in keys:
            if self._closed:
                return
            self._fetch(key)

    def _fetch(self, key: str) -> None:
        if key in self._loader.arena:
            return
        try:
            self._loader.fetch(key)
        except (InferScaleError, OSError) as error:
            logger.debug("chunk %s was not prefetched: %s", key[:12], error)
        except Exception:  # the chunks behind it are fetched all the same; the load finds out for itself
            logger.exception("chunk %s was not prefetched", key[:12])


class WorkerExtension:
    """Methods that vLLM adds to its workers (``worker_extension_cls``), so that they can be asked out of turn."""

    def inferscale_prefetch(self, keys: list[str]) -> None:
        """See ``WorkerSide.prefetch``."""
        side = compat.connector_worker()
        if side is not None:
            side.prefetch(keys)

    def inferscale_loaded(self) -> list[int]:
        """See ``WorkerSide.loaded``."""
        side = compat.connector_worker()
        return list(side.loaded()) if side is not None else []

    def inferscale_drop(self, tier: str) -> None:
        """See ``WorkerSide.drop``."""
        side = compat.connector_worker()
        if side is not None:
            side.drop(tier)
