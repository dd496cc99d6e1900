"""Bringing recalled chunks into a worker's memory before the question arrives."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence

import torch

from inferscale_memory.errors import InferScaleError
from inferscale_memory.serving import compat
from inferscale_memory.serving.loading import Loader

logger = logging.getLogger(__name__)

MAX_WAITING = 64
"""Recalls that may wait; more than that are dropped, the loads of their questions fetch for themselves."""


class Prefetcher:
    """One thread that fetches what it is asked for, oldest first."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._asked: queue.Queue[Sequence[str] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def ask(self, keys: Sequence[str]) -> None:
        """Fetch these chunks soon; returns at once."""
        missing = [key for key in keys if key not in self._loader.arena]
        if not missing:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inferscale-prefetch", daemon=True)
            self._thread.start()
        try:
            self._asked.put_nowait(missing)
        except queue.Full:
            logger.debug("%d chunks are not prefetched: %d recalls wait already.", len(missing), MAX_WAITING)

    def close(self) -> None:
        """Stop after the chunk that is under way."""
        if self._thread is None:
            return
        self._stop.set()
        with contextlib.suppress(queue.Full):  # full of recalls: then it is not waiting, and sees the event
            self._asked.put_nowait(None)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        device = self._loader.arena.keys.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # per thread; pinning memory would go to the first device
        while (keys := self._asked.get()) is not None:
            for key in keys:
                if self._stop.is_set():
                    return
                self._fetch(key)

    def _fetch(self, key: str) -> None:
        if key in self._loader.arena:
            return
        try:
            self._loader.fetch(key)
        except (InferScaleError, OSError) as error:
            logger.debug("chunk %s was not prefetched: %s", key[:12], error)
        except Exception:  # a thread that dies would take prefetching with it; the load finds out for itself
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
