"""Values that the ledger takes and hands out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from inferscale_memory.encoding.policies import ContextItem
from inferscale_memory.scope import digest


@dataclass(frozen=True)
class ChunkRecord:
    """A chunk about to be encoded: whose it is and what it was encoded behind."""

    key: str
    fact_id: str
    revision: int
    principal: str
    fingerprint: str
    policy: str
    n_tokens: int
    context: tuple[ContextItem, ...] = ()


@dataclass(frozen=True)
class ChunkRef:
    """A ready chunk. ``n_tokens`` is the length of the fact's line in tokens."""

    key: str
    revision: int
    n_tokens: int


@dataclass(frozen=True)
class Forgotten:
    """What a deletion took along.

    Attributes:
        keys: chunks to delete from every tier: those of the facts themselves and those of their dependants.
        dependants: other facts that were encoded behind something deleted; they wait to be encoded again.
    """

    keys: tuple[str, ...]
    dependants: tuple[str, ...]


def chunk_owner(principal: str, fact_id: str, revision: int, policy: str) -> str:
    """The ``owner`` of ``kv.keys.chunk_key``: different for every fact, revision and policy.

    Two facts of one user may have equal text and equal context (in two sessions, say); with a key of their own each
    can be deleted without the other.
    """
    return digest("chunk-owner", principal, fact_id, str(revision), policy)


@dataclass(frozen=True)
class ParkedFact:
    """A fact set aside: served by prefill until it is retried or updated."""

    fact_id: str
    revision: int
    attempts: int
    reason: str
    at: datetime
