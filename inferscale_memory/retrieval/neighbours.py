"""Which facts are most like a fact, and which facts a new one comes close to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from inferscale_memory.retrieval.base import Hit
from inferscale_memory.retrieval.keeper import IndexKeeper

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact
    from inferscale_memory.facts.store import FactStore
    from inferscale_memory.scope import Scope

DECIMALS = 5
"""Cosines are compared rounded: an embedder may give a text a slightly different vector in another batch, and that must
not decide which of two equally similar facts comes first."""
MARGIN = 2e-5
"""How far below its rounded value a cosine may be computed in float32."""
_SPARE = 8
_BLOCK = 2048


class Neighbours:
    """Similarity among the facts of one index: of those that ``catch_up`` or a search has brought there.

    Only facts that may be context of each other count (see ``Scope.accompanies``). All methods may be called from
    several threads.

    Args:
        store: the facts.
        keeper: of the index.
    """

    def __init__(self, store: FactStore, keeper: IndexKeeper) -> None:
        self._store, self._keeper = store, keeper

    def catch_up(self) -> int:
        """A page of ``Retriever.sync`` (see ``IndexKeeper.step``)."""
        return self._keeper.step()

    @property
    def known_until(self) -> int:
        """Sequence number of the last change of the store that is in the index."""
        return self._keeper.cursor

    def revisions(self, fact_ids: Iterable[str]) -> dict[str, int]:
        """Indexed revision of those of ``fact_ids`` that are indexed."""
        return self._keeper.revisions(fact_ids)

    def nearest(self, fact: Fact, n: int) -> list[tuple[Fact, float]] | None:
        """The ``n`` facts most similar to ``fact`` and their cosines, most similar first; the same saved first.

        Fewer only if fewer exist. None where ``fact`` is not indexed at its revision.
        """
        fetch = n + 1 + _SPARE
        while True:
            hits = self._keeper.companions(fact.id, fact.revision, fact.scope, fetch)
            if hits is None:
                return None
            found = self._current(fact, hits)
            # Of those that are exactly as similar as the last hit, some may not have been looked at.
            worst = round(hits[-1].score, DECIMALS) if hits else 0.0
            if len(hits) < fetch or (len(found) >= n and (not n or found[n - 1][1] > worst)):
                return found[:n]
            fetch *= 2

    def reached(self, fact_ids: Collection[str], reach: Mapping[str, float]) -> set[str]:
        """Which facts have one of ``fact_ids`` as similar to them as they ask for.

        Args:
            fact_ids: the new facts; those that are not indexed reach nobody.
            reach: by fact id, the least cosine asked for.

        Returns:
            Ids of ``reach``: of those whose context a new fact may be, not counting itself.
        """
        new = self._keeper.snapshot(list(dict.fromkeys(fact_ids)))
        asked = list(reach)
        found: set[str] = set()
        if not new:
            return found
        vectors = np.stack([vector for _, vector in new.values()])
        scopes = self._keeper.scopes([*new, *asked])
        for start in range(0, len(asked), _BLOCK):
            held = self._keeper.snapshot(asked[start : start + _BLOCK])
            if not held:
                continue
            cosines = np.stack([vector for _, vector in held.values()]) @ vectors.T  # [held, new]
            least = np.array([reach[fact_id] for fact_id in held], dtype=np.float32)
            near = cosines >= least[:, None] - MARGIN
            near &= _may_see(list(held), list(new), scopes)
            found.update(fact_id for fact_id, any_new in zip(held, near.any(axis=1), strict=True) if any_new)
        return found

    def _current(self, fact: Fact, hits: Sequence[Hit]) -> list[tuple[Fact, float]]:
        """The hits that are still what the index says, ranked."""
        ids = [hit.id for hit in hits if hit.id != fact.id]
        facts, indexed = self._store.get_many(ids), self._keeper.revisions(ids)
        live = [
            (facts[hit.id], round(hit.score, DECIMALS))
            for hit in hits
            if hit.id in facts and facts[hit.id].revision == indexed.get(hit.id) and hit.id != fact.id
        ]
        return sorted(live, key=lambda near: (-near[1], near[0].seq))


def _may_see(seers: Sequence[str], seen: Sequence[str], scopes: Mapping[str, Scope]) -> np.ndarray:
    """Whether each of ``seers`` may be encoded behind each of ``seen``: ``[len(seers), len(seen)]`` bool."""
    # Scopes are few and facts are many: the rule is asked for each pair of scopes that occurs.
    kinds = list(dict.fromkeys(scopes.values()))
    number = {scope: at for at, scope in enumerate(kinds)}
    allowed = np.array([[other.accompanies(scope) for other in kinds] for scope in kinds], dtype=bool)
    none = len(kinds)  # dropped from the index meanwhile
    allowed = np.pad(allowed, (0, 1))
    rows = np.array([number[scopes[i]] if i in scopes else none for i in seers])
    columns = np.array([number[scopes[i]] if i in scopes else none for i in seen])
    place = {fact_id: at for at, fact_id in enumerate(seen)}
    out = allowed[np.ix_(rows, columns)]
    for at, fact_id in enumerate(seers):
        if fact_id in place:
            out[at, place[fact_id]] = False
    return out
