"""Long-term memory for LLM applications, kept as attention states and injected into vLLM's paged cache.

The public names are loaded on first use, so that ``import inferscale_memory`` is quick and works without PyTorch, vLLM
or a database driver; what needs one of them says which extra brings it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferscale_memory.config import Settings
    from inferscale_memory.memory import Memory
    from inferscale_memory.serving.engine import LocalEngine

from inferscale_memory.errors import (
    ChunkError,
    ConfigError,
    EncodingError,
    EngineError,
    FactNotFoundError,
    FlushTimeoutError,
    HandleError,
    InferScaleError,
    InvalidInputError,
    MissingExtraError,
    ModelError,
    PromptError,
    ScopeError,
    StoreError,
    UnsupportedModelError,
)
from inferscale_memory.scope import Scope

__all__ = [
    "ChunkError",
    "ConfigError",
    "EncodingError",
    "EngineError",
    "FactNotFoundError",
    "FlushTimeoutError",
    "HandleError",
    "InferScaleError",
    "InvalidInputError",
    "LocalEngine",
    "Memory",
    "MissingExtraError",
    "ModelError",
    "PromptError",
    "Scope",
    "ScopeError",
    "Settings",
    "StoreError",
    "UnsupportedModelError",
    "__version__",
]

_LAZY = {
    "LocalEngine": "inferscale_memory.serving.engine",
    "Memory": "inferscale_memory.memory",
    "Settings": "inferscale_memory.config",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name == "__version__":
        value: Any = _version()
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("inferscale-memory")
    except PackageNotFoundError:
        # A checkout on sys.path that was never installed.
        return "0+unknown"
