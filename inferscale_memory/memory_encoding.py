"""The verbs of a memory that are about its background encoder: wait for it, ask it, set it going again."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from threading import Event
from typing import Any

from inferscale_memory.encoding.encoder import EncoderStatus, FlushReport, Progress
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.memory_parts import MemoryParts


class MemoryEncoding(MemoryParts):
    """A part of ``SyncMemory``, by whose rules its methods go."""

    def flush(self, timeout: float | None = None, *, progress: Progress | None = None, **scope: Any) -> FlushReport:
        """Wait until facts are encoded; of one scope, or without one of everybody.

        Returns at once where there is no encoder (no engine, or a model that cannot be injected).

        Raises:
            InvalidInputError: ``timeout`` is not a number of seconds, 0 or more.
            FlushTimeoutError: some were left after ``timeout`` seconds.
            EngineError: the engine died.
        """
        return self._flush(timeout, progress, scope, None)

    def _flush(
        self, timeout: float | None, progress: Progress | None, ids: Mapping[str, Any], given_up: Event | None
    ) -> FlushReport:
        self._check_open()
        owner = self._owner(ids) if ids else None
        if timeout is not None and not (isinstance(timeout, Real) and timeout >= 0):
            raise InvalidInputError(f"timeout is {timeout!r}; wanted seconds, 0 or more, or None to wait for ever.")
        if self.encoder is None:
            return FlushReport(0, ())
        return self.encoder.flush(timeout, owner, progress, given_up=given_up)

    def status(self) -> EncoderStatus | None:
        """State of the background encoder, ``None`` where there is none."""
        self._check_open()
        return None if self.encoder is None else self.encoder.status()

    def retry_parked(self, **scope: Any) -> int:
        """Encode facts again that were set aside after failing (a full disk, say); returns how many."""
        owner = self._owner(scope) if scope else None
        self._check_open()
        return 0 if self.encoder is None else self.encoder.retry_parked(owner)
