"""What travels beside the messages of a run: the handles a middleware placed, and whose run it is.

Both go by context variables. They reach the model through every wrapper that LangChain puts between (bindings,
executors, tasks copy the context), and they stand in no message, no keyword and hence in no state, checkpoint or trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import ensure_config

SCOPE_IDS = ("user_id", "agent_id", "session_id", "tenant_id")

_placed: ContextVar[tuple[str, ...]] = ContextVar("inferscale_placed_handles", default=())


@contextmanager
def placed(handles: Sequence[str]) -> Iterator[None]:
    """Every ``ChatInferScale`` call made inside gets these handles, as if they stood in its system message."""
    token = _placed.set(tuple(handles))
    try:
        yield
    finally:
        _placed.reset(token)


def placed_handles() -> tuple[str, ...]:
    """Handles that a middleware has placed for the current call."""
    return _placed.get()


def scope_ids(source: Any) -> dict[str, str]:
    """The scope keywords that an object names, as a mapping's keys or as attributes; those that are None are absent.

    Args:
        source: a ``runtime.context`` (a dict, a dataclass, a pydantic model), ``config["configurable"]``, or None.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        found = {name: source.get(name) for name in SCOPE_IDS}
    else:
        found = {name: getattr(source, name, None) for name in SCOPE_IDS}
    return {name: value for name, value in found.items() if value is not None}


def configured_scope(config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The scope keywords under ``configurable`` of a config; without one, of the run that is going on."""
    return scope_ids((ensure_config() if config is None else config).get("configurable"))
