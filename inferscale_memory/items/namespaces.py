"""Namespaces: how they are written down, which of them a pattern names, and whose memory they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.items.models import Namespace
from inferscale_memory.items.tables import MAX_PATH_CHARS
from inferscale_memory.scope import MAX_ID_CHARS, Scope

ScopeOf = Callable[[Namespace], Mapping[str, Any]]
"""From a namespace to the keywords ``user_id``, ``agent_id``, ``session_id``."""

_SEPARATOR = "/"
_NEXT = chr(ord(_SEPARATOR) + 1)
_SCOPE_IDS = frozenset({"user_id", "agent_id", "session_id"})


@dataclass(frozen=True)
class Pattern:
    """Namespaces that begin (or end) with ``path``, in which ``"*"`` stands for any one label."""

    kind: Literal["prefix", "suffix"]
    path: Namespace

    def __post_init__(self) -> None:
        if self.kind not in ("prefix", "suffix"):
            raise InvalidInputError(f"Unsupported match type: {self.kind!r}; want 'prefix' or 'suffix'.")

    def matches(self, namespace: Namespace) -> bool:
        """Whether it names this namespace."""
        if len(namespace) < len(self.path):
            return False
        part = namespace[: len(self.path)] if self.kind == "prefix" else namespace[len(namespace) - len(self.path) :]
        return all(wanted in ("*", label) for wanted, label in zip(self.path, part, strict=True))


def check_namespace(namespace: Sequence[str], *, what: str = "namespace") -> Namespace:
    """The namespace as a tuple; empty for none.

    Raises:
        InvalidInputError: it is no sequence of labels, or a label is empty, no string, or not valid Unicode.
    """
    if isinstance(namespace, str) or not isinstance(namespace, Sequence):
        raise InvalidInputError(f"a {what} must be a tuple of strings, got {namespace!r}.")
    for label in namespace:
        if not isinstance(label, str) or not label:
            raise InvalidInputError(f"the {what} {tuple(namespace)!r} holds {label!r}; labels are non-empty strings.")
        if "\0" in label or any("\ud800" <= char <= "\udfff" for char in label):
            raise InvalidInputError(f"the {what} {tuple(namespace)!r} holds a NUL or a lone surrogate; remove it.")
    return tuple(namespace)


def to_path(namespace: Namespace) -> str:
    """The namespace as one text: each label escaped and ended by a slash, so that a prefix is a prefix of the text."""
    return "".join(_escape(label) + _SEPARATOR for label in namespace)


def from_path(path: str) -> Namespace:
    """The namespace that ``to_path`` wrote."""
    return tuple(_unescape(label) for label in path.split(_SEPARATOR)[:-1])


def path_range(prefix: Namespace) -> tuple[str, str] | None:
    """Where the paths below ``prefix`` lie in the order of code points: from the first, up to before the second.

    None for the empty prefix: everywhere.
    """
    path = to_path(prefix)
    return (path, path[:-1] + _NEXT) if path else None


def checked_path(namespace: Namespace) -> str:
    """The path of a namespace that an item is to be written to.

    Raises:
        InvalidInputError: it is empty or too long.
    """
    if not namespace:
        raise InvalidInputError("the namespace is empty; give it at least one label, such as ('alice',).")
    path = to_path(namespace)
    if len(path) > MAX_PATH_CHARS:
        raise InvalidInputError(
            f"the namespace is {len(path)} characters long, its escapes and a slash per label included; at most "
            f"{MAX_PATH_CHARS} are taken. Shorten its labels."
        )
    return path


def user_of(namespace: Namespace) -> dict[str, str]:
    """The default scope of a namespace: its labels joined by ``/`` are the user.

    ``/``, ``%`` and control characters in a label are percent-escaped, so no two namespaces are the same user.

    Raises:
        InvalidInputError: that is more than an id may hold.
    """
    user = to_path(namespace)[: -len(_SEPARATOR)]
    if len(user) > MAX_ID_CHARS:
        raise InvalidInputError(
            f"the namespace makes a user_id of {len(user)} characters, at most {MAX_ID_CHARS} are taken. Shorten its "
            "labels, or say whose memory a namespace is with scope=."
        )
    return {"user_id": user}


def scope_of(namespace: Namespace, tenant: str, rule: ScopeOf) -> Scope:
    """Whose memory the namespace is.

    Raises:
        InvalidInputError: ``rule`` returns something else than scope keywords.
        ScopeError: an id is blank or malformed.
    """
    ids = rule(namespace)
    if not isinstance(ids, Mapping) or not set(ids) <= _SCOPE_IDS:
        raise InvalidInputError(
            f"scope= made {ids!r} of the namespace {namespace!r}; want a dict with user_id, agent_id or session_id."
        )
    return Scope.of(tenant_id=tenant, **ids)


def listed(
    namespaces: Iterable[Namespace], patterns: Sequence[Pattern], max_depth: int | None, limit: int, offset: int
) -> list[Namespace]:
    """Those that every pattern names, cut to ``max_depth`` labels, each once, in order; a page of them."""
    named = {namespace for namespace in namespaces if all(pattern.matches(namespace) for pattern in patterns)}
    if max_depth is not None:
        named = {namespace[:max_depth] for namespace in named}
    return sorted(named)[offset : offset + limit]


def fixed_prefix(patterns: Iterable[Pattern]) -> Namespace:
    """Labels that every namespace named by all of these must begin with."""
    longest: Namespace = ()
    for pattern in patterns:
        if pattern.kind == "prefix":
            wild = pattern.path.index("*") if "*" in pattern.path else len(pattern.path)
            longest = max(longest, pattern.path[:wild], key=len)
    return longest


def _escape(label: str) -> str:
    return "".join(
        f"%{ord(char):02X}" if char in "%/" or ord(char) < 32 or ord(char) == 127 else char for char in label
    )


def _unescape(label: str) -> str:
    head, *rest = label.split("%")
    return head + "".join(chr(int(part[:2], 16)) + part[2:] for part in rest)
