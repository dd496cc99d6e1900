"""Which facts the index holds, at which revision, for whom; and which could not be embedded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from inferscale_memory.scope import Scope

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0


@dataclass(frozen=True)
class Failure:
    """A fact that cannot be found by search, because it could not be embedded."""

    fact_id: str
    revision: int
    reason: str
    attempts: int
    """How often it was tried alone."""
    retry_at: float
    """When the next ``sync`` tries again, on the retriever's clock, in seconds."""

    @classmethod
    def after(cls, previous: Failure | None, fact_id: str, revision: int, reason: str, now: float) -> Failure:
        """The failure that follows ``previous`` of the same fact: waits twice as long, up to five minutes."""
        attempts = previous.attempts + 1 if previous and previous.revision == revision else 1
        wait = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 30), LAST_RETRY_SECONDS)
        return cls(fact_id, revision, reason, attempts, now + wait)


class Catalog:
    """Revision and scope of every indexed fact. Not thread-safe: the retriever holds its lock around it."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, Scope]] = {}
        # Scopes are few and facts are many: covering is decided once for each scope that occurs.
        self._by_principal: dict[str, dict[Scope, set[str]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> frozenset[str]:
        """Every indexed fact."""
        return frozenset(self._entries)

    def revision(self, fact_id: str) -> int | None:
        """The indexed revision, or None if the fact is not indexed."""
        entry = self._entries.get(fact_id)
        return entry[0] if entry else None

    def put(self, fact_id: str, revision: int, scope: Scope) -> None:
        """Record that ``fact_id`` is indexed at ``revision``."""
        self.drop([fact_id])
        self._entries[fact_id] = (revision, scope)
        self._by_principal.setdefault(scope.principal, {}).setdefault(scope, set()).add(fact_id)

    def drop(self, fact_ids: Collection[str]) -> None:
        """Forget ``fact_ids``; unknown ones are ignored."""
        for fact_id in fact_ids:
            entry = self._entries.pop(fact_id, None)
            if entry is None:
                continue
            scope = entry[1]
            scopes = self._by_principal[scope.principal]
            scopes[scope].discard(fact_id)
            if not scopes[scope]:
                del scopes[scope]
            if not scopes:
                del self._by_principal[scope.principal]

    def scope(self, fact_id: str) -> Scope | None:
        """Whose the indexed fact is, or None if it is not indexed."""
        entry = self._entries.get(fact_id)
        return entry[1] if entry else None

    def companions(self, scope: Scope) -> set[str] | None:
        """Facts that may be context of a fact of ``scope`` (see ``Scope.accompanies``); None: all of its principal."""
        scopes = self._by_principal.get(scope.principal, {})
        found = [members for other, members in scopes.items() if other.accompanies(scope)]
        return None if len(found) == len(scopes) else set().union(*found)

    def allowed(self, scope: Scope) -> set[str] | None:
        """Facts that ``scope`` covers, or None where that is every fact of its principal."""
        scopes = self._by_principal.get(scope.principal, {})
        covered = [members for other, members in scopes.items() if scope.covers(other)]
        if len(covered) == len(scopes):
            return None
        return set().union(*covered)
