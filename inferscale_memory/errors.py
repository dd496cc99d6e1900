"""Every error the library raises on purpose. Each message says what was found, what was wanted and the remedy."""

from __future__ import annotations


class InferScaleError(Exception):
    """Base of every error raised by this library."""


class InvalidInputError(InferScaleError, ValueError):
    """An argument cannot be used as it is: blank text, a lone surrogate, a negative ``k``."""


class ScopeError(InvalidInputError):
    """A scope id is blank, missing or malformed. Scopes are refused, never widened."""


class FactNotFoundError(InferScaleError, KeyError):
    """No such fact in this scope. A fact of another scope gives the same answer as a missing one."""

    def __str__(self) -> str:
        """KeyError would show the message in quotes."""
        return str(self.args[0]) if self.args else ""


class HandleError(InferScaleError):
    """A KV handle was forged, expired, unknown or of another scope."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One of ``malformed``, ``forged``, ``expired``, ``unknown``, ``foreign``."""


class StoreError(InferScaleError):
    """The fact or KV store cannot be read or written: full disk, read-only folder, foreign schema."""


class ChunkError(StoreError):
    """A KV chunk file is missing, torn, swapped or from another model. Always treated as a cache miss."""


class ModelError(InferScaleError):
    """A model folder or id cannot be loaded as one."""


class UnsupportedModelError(ModelError):
    """The model runs, but its attention states cannot be injected; it is served by plain prefill."""


class PromptError(InferScaleError):
    """The chat template cannot hold facts, or the prompt cannot fit the model's length."""


class EngineError(InferScaleError):
    """The engine failed to start, died, or refused a request."""


class EncodingError(InferScaleError):
    """A fact could not be encoded into KV; its text is safe and it is served by prefill."""


class FlushTimeoutError(InferScaleError, TimeoutError):
    """``flush(timeout)`` ended with facts still waiting to be encoded."""


class ConfigError(InferScaleError):
    """A setting is unknown or contradictory."""


class MissingExtraError(InferScaleError, ImportError):
    """An optional dependency is needed; the message holds the exact pip command."""
