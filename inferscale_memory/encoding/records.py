"""Values that the ledger takes and hands out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from inferscale_memory.encoding.policies import ContextItem
from inferscale_memory.scope import digest


@dataclass(frozen=True)
class ChunkRecord:
    """A chunk about to be encoded: whose it is and what it is encoded behind.

    Attributes:
        context: what stands in its prompt.
        left_out: what was chosen too but did not fit.
        reach: how similar a further fact must be to change the choice (``ContextPolicy.reach``).
        known_until: sequence number of the last change of the facts that the choice took into account; None where it
            does not depend on facts saved later.
        without_vector: the choice should have gone by the fact's vector, and it has none.
    """

    key: str
    fact_id: str
    revision: int
    principal: str
    fingerprint: str
    policy: str
    n_tokens: int
    context: tuple[ContextItem, ...] = ()
    left_out: tuple[ContextItem, ...] = ()
    reach: float | None = None
    known_until: int | None = None
    without_vector: bool = False


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
