"""What travels beside the messages of a run: the handles a middleware placed, and whose run it is.

Both go by context variables. They reach the model through every wrapper that LangChain puts between (bindings,
executors, tasks copy the context), and they stand in no message, no keyword and hence in no state, checkpoint or trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import ensure_config

from inferscale_memory.errors import ScopeError

SCOPE_IDS = ("user_id", "agent_id", "session_id", "tenant_id")
_NOTHING: Mapping[str, Mapping[str, Any]] = {}


_placed: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("inferscale_placed_handles", default=_NOTHING)


@contextmanager
def placed(handles: Sequence[str], scope: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Every ``ChatInferScale`` call made inside gets these handles, as if they stood in its system message.

    Nested ones add up: the outer handles come first, each once.

    Args:
        handles: text tokens as ``Memory.recall`` gives them.
        scope: the scope keywords that they were recalled with.
    """
    outer = _placed.get()
    new = {str(handle): dict(scope or {}) for handle in handles if handle not in outer}
    token = _placed.set({**outer, **new})
    try:
        yield
    finally:
        _placed.reset(token)


def placed_handles() -> tuple[str, ...]:
    """Handles that middleware has placed for the current call."""
    return tuple(_placed.get())


def placed_scopes(named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The placed handles that are of a scope of their own, each with its scope keywords.

    A memory may be narrower than what a call names (an agent's of this user), or not a person's at all (an agent's, for
    everybody), so such a handle is checked against the scope it was recalled with. One whose scope contradicts what the
    call names is not among them: it is checked as any other handle of the call, and refused.

    Args:
        named: the scope keywords of the call, ``call_scope``.
    """
    return {
        handle: dict(scope)
        for handle, scope in _placed.get().items()
        if scope and all(named.get(name, value) == value for name, value in scope.items())
    }


def call_scope(given: Mapping[str, Any]) -> dict[str, Any]:
    """The scope keywords that a model call is made with: those of the run, and before them ``given``.

    Empty: each handle resolves to the scope it is signed for.

    Args:
        given: scope keywords of the call and of the model.

    Raises:
        ScopeError: the run contradicts itself.
    """
    return {**named_scope(), **given}


def scope_ids(source: Any) -> dict[str, Any]:
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


def configured_scope(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The scope keywords under ``configurable`` of a config; without one, of the run that is going on."""
    return scope_ids((ensure_config() if config is None else config).get("configurable"))


def run_scope(config: Mapping[str, Any] | None = None, context: Any = None) -> dict[str, Any]:
    """The scope keywords that a run names, under ``configurable`` and in its langgraph context.

    Args:
        config: of the run; without one, of the run that is going on.
        context: its ``runtime.context``; without one, that of the graph that is running, if one is.

    Raises:
        ScopeError: the two name different ids.
    """
    found = _running_context() if context is None else context
    return merged_scope({"the run's context": scope_ids(found), "config['configurable']": configured_scope(config)})


def named_scope(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The scope keywords that a run names, if it says whose memory; else none. As ``run_scope``.

    RunnableWithMessageHistory names a session for its own purposes; that alone says nobody's memory.
    """
    run = run_scope(config)
    return run if {"user_id", "agent_id"} & run.keys() else {}


def merged_scope(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All ids that the sources name, which must agree: whoever names one more id narrows, and nobody widens.

    Args:
        sources: the scope keywords of each source, by what an error shall call it.

    Raises:
        ScopeError: two sources give one keyword different ids.
    """
    merged: dict[str, Any] = {}
    named_by: dict[str, str] = {}
    for source, ids in sources.items():
        for name, value in ids.items():
            if merged.setdefault(name, value) != value:
                raise ScopeError(
                    f"{named_by[name]} and {source} name different ids for {name}: {merged[name]!r} and {value!r}. "
                    "Give each id in one place: what differs from run to run in the run's context."
                )
            named_by.setdefault(name, source)
    return merged


def _running_context() -> Any:
    """``runtime.context`` of the graph that is running; None outside of one."""
    # A graph can only be running if langgraph is loaded; importing it here would make every user of the package pay.
    langgraph = sys.modules.get("langgraph.runtime")
    if langgraph is None:
        return None
    try:
        runtime = langgraph.get_runtime()
    except (RuntimeError, KeyError):  # no run is going on, or none of a graph
        return None
    return None if runtime is None else runtime.context
