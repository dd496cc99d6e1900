"""Ordering copies into device memory against what reads it, without waiting on the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferscale_memory._extras import require

if TYPE_CHECKING:
    import torch


class CopyStream:
    """A side stream for writes; readers use the current one. On a CPU, where nothing is enqueued, it does nothing.

    A write waits (on the device) for reads enqueued before it, and a read for writes enqueued before it. May be used
    from several threads.

    Args:
        device: where the memory is.
    """

    def __init__(self, device: torch.device) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._torch: Any = None
        if device.type == "cuda":
            self._torch = require("torch", "cuda", "copies on a CUDA device")
            self._stream = self._torch.cuda.Stream(device)
            self._written = self._torch.cuda.Event()
            self._read = self._torch.cuda.Event()
            # Work enqueued before, such as the allocator's own reuse of the memory, comes first.
            self._read.record(self._torch.cuda.current_stream(device))

    @contextmanager
    def writing(self, *, after_current: bool) -> Iterator[None]:
        """What is enqueued within runs on the side stream, behind all reads so far.

        Args:
            after_current: also behind this thread's current stream, where the source has just been computed.
        """
        if self._torch is None:
            yield
            return
        current = self._torch.cuda.current_stream(self._device)
        with self._lock, self._torch.cuda.stream(self._stream):
            self._stream.wait_event(self._read)
            if after_current:
                self._stream.wait_stream(current)
            yield
            self._written.record(self._stream)

    def uses(self, *tensors: torch.Tensor) -> None:
        """Call within ``writing``: the memory of these device tensors is not reused before the copy has run."""
        if self._torch is not None:
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)

    def before_reading(self) -> None:
        """What this thread enqueues next on its current stream runs behind all writes so far."""
        if self._torch is not None:
            with self._lock:
                self._torch.cuda.current_stream(self._device).wait_event(self._written)

    def reads_enqueued(self) -> None:
        """Writes from now on run behind what has been enqueued on the current stream."""
        if self._torch is not None:
            with self._lock:
                self._read.record(self._torch.cuda.current_stream(self._device))
