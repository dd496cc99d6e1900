"""What the connector is told by ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferscale_memory.errors import ConfigError

DEFAULT_ARENA_BYTES = 1 << 30


@dataclass(frozen=True)
class ConnectorOptions:
    """Options of both sides."""

    root: Path
    """The KV folder."""
    fingerprint: str
    """Of the model, from ``inferscale_memory.kv.fingerprint``."""
    arena_bytes: int = DEFAULT_ARENA_BYTES
    """Each worker's preallocated memory for chunks, on its device."""
    host_bytes: int = 0
    """Each worker's second memory tier, in host memory (pinned on CUDA); 0 for none."""
    kernels: bool | None = None
    """Whether chunks are injected by one kernel launch; ``None``: on CUDA, where the engine's caches allow it."""

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> ConnectorOptions:
        """Read the connector's part of the engine's configuration.

        Raises:
            ConfigError: a field is missing or unknown.
        """
        missing = [name for name in ("root", "fingerprint") if not extra.get(name)]
        if missing:
            raise ConfigError(f"kv_connector_extra_config lacks {missing}; LocalEngine sets both.")
        unknown = sorted(set(extra) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise ConfigError(f"kv_connector_extra_config has unknown fields {unknown}; known are {known}.")
        return cls(**{**extra, "root": Path(extra["root"])})

    def as_dict(self) -> dict[str, Any]:
        """Plain fields, for vLLM's configuration."""
        return {**asdict(self), "root": str(self.root)}
