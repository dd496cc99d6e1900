"""What the agent's middleware makes sure of before it starts."""

from __future__ import annotations

from numbers import Real
from typing import Any

from inferscale_memory import Memory
from inferscale_memory.errors import ConfigError, InvalidInputError
from inferscale_memory.memory_finding import check_options


def reads_handles(model: Any) -> bool:
    """Whether a ``ChatInferScale`` is inside of what LangChain wraps models in (bindings, fallbacks)."""
    from langchain_inferscale.chat_model import ChatInferScale

    while model is not None and not isinstance(model, ChatInferScale):
        model = getattr(model, "bound", None) or getattr(model, "runnable", None)
    return model is not None


def check_arguments(memory: object, k: object, refresh: object, threshold: object, timeout: object) -> None:
    """Refuse now what would make every search fail, and look like an outage.

    Raises:
        ConfigError: ``memory`` is not a ``Memory``.
        InvalidInputError: another argument is out of range.
    """
    if not isinstance(memory, Memory):
        raise ConfigError(f"memory is a {type(memory).__name__}; give the inferscale_memory.Memory of the engine.")
    check_options(k, refresh)
    if threshold is not None and not (isinstance(threshold, Real) and -1.0 <= float(threshold) <= 1.0):
        raise InvalidInputError(f"threshold is {threshold!r}; wanted a cosine in [-1, 1], or None.")
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not float(timeout) > 0:
        raise InvalidInputError(f"timeout is {timeout!r}; wanted seconds, more than 0.")
