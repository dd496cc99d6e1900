"""What the encoder needs of the engine and of the chunk store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from inferscale_memory.encoding.policies import PromptPieces
from inferscale_memory.serving.protocol import CaptureResult, CaptureSpan


class EncodingEngine(Protocol):
    """An engine that runs a prompt and keeps the attention state of spans of it."""

    @property
    def fingerprint(self) -> str:
        """Of the model, 64 hex digits."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens."""
        ...

    @property
    def prompt(self) -> PromptPieces:
        """Makes the token ids of preamble and lines."""
        ...

    async def capture(self, token_ids: Sequence[int], spans: Sequence[CaptureSpan], *, salt: str) -> CaptureResult:
        """Run the prompt and store the spans' chunks; their files are on disk when this returns.

        May be awaited from any event loop, many at once. After it returned, raised or was cancelled by the engine
        itself, nothing more of this call is written.

        Raises:
            EngineError: the engine as a whole cannot go on; encoding stops. One that was raised ``from`` a ValueError
                says that this prompt was refused. That, any other error, and what ``CaptureResult.failed`` reports,
                cost this prompt only.
        """
        ...


class ChunkFiles(Protocol):
    """The part of ``kv.store.ChunkStore`` used here."""

    def exists(self, key: str) -> bool:
        """Whether all parts of the chunk are there."""
        ...

    def delete(self, keys: Iterable[str]) -> int:
        """Remove chunks for good, in every process; unknown keys are ignored."""
        ...
