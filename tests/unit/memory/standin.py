"""What a memory needs of a ``LocalEngine``, on the encoder tests' stand-in, which writes real chunk files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferscale_memory.config import load_settings
from inferscale_memory.kv import ChunkStore
from tests.unit.encoding.plumbing import MODEL, WritingEngine


class StandIn(WritingEngine):
    """An engine without a model."""

    unsupported: str | None = None
    world = 1

    def __init__(self, home: Path | None = None, fingerprint: str = MODEL, **options: Any) -> None:
        self.settings = load_settings(home)
        self.fingerprint = fingerprint
        self.resolver: Any = None
        self.deletions_followed = 0
        self.prefetched: list[str] = []
        super().__init__(ChunkStore(self.settings.kv_folder), **options)

    def bind(self, resolver: Any) -> None:
        self.resolver = resolver

    def follow_deletions(self) -> None:
        self.deletions_followed += 1

    def prefetch(self, keys: Sequence[str]) -> None:
        self.prefetched.extend(keys)
