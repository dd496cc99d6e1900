"""The values that the items' store takes and hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

Namespace: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """A document. ``(namespace, key)`` is its name within the tenant."""

    namespace: Namespace
    key: str
    value: dict[str, Any] = field(hash=False)
    """Its own copy: changing it changes nothing in the store."""
    created_at: datetime
    updated_at: datetime
    ttl: float | None = None
    """Minutes that it lives after its last use; None: for ever."""
    expires_at: datetime | None = None


@dataclass(frozen=True)
class FoundItem:
    """An item that a search found."""

    item: Item
    score: float | None
    """Best cosine of the question and any of its texts, in [-1, 1]; None where there was no question, or no text."""


@dataclass(frozen=True)
class Put:
    """An item to be written, or with ``value=None`` deleted."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any] | None
    texts: tuple[str, ...] = ()
    """What it can be found by: each becomes a fact of the namespace's scope."""
    ttl: float | None = None
    """Minutes that it lives after its last use; None: for ever."""


@dataclass(frozen=True)
class Query:
    """A search below a namespace prefix; ``()`` covers the whole tenant."""

    prefix: Namespace
    question: str | None = None
    """Ranks by meaning; None or blank: in the order of writing, namespace by namespace."""
    filter: Mapping[str, Any] | None = None
    """See ``filters.matches``."""
    limit: int = 10
    offset: int = 0
