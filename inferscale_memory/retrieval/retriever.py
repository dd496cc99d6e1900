"""From a question to facts: searches an index within one scope, and hands out what the fact store says now."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from inferscale_memory.errors import InferScaleError, InvalidInputError
from inferscale_memory.retrieval.base import Embedder, EmbeddingError, Hit, VectorIndex
from inferscale_memory.retrieval.catalog import Failure
from inferscale_memory.retrieval.desk import EmbeddingDesk, Question, check_question
from inferscale_memory.retrieval.keeper import IndexKeeper
from inferscale_memory.retrieval.neighbours import Neighbours
from inferscale_memory.retrieval.vectors import check_k, cosines, unit_rows
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.facts.models import Fact
    from inferscale_memory.facts.store import FactStore

NEAR_DUPLICATE_COSINE = 0.95
"""Facts of one answer whose vectors are at least this close say the same thing, and share one slot."""


@dataclass(frozen=True)
class ScoredFact:
    """A fact that was found."""

    fact: Fact
    score: float
    """Cosine of the question and the fact, in [-1, 1]."""
    duplicates: tuple[str, ...] = ()
    """Ids of worse-ranked near-duplicates that gave up their slot to this fact, best first. Those far down the ranking
    may be missing: only as many facts are looked at as it takes to fill the slots."""


class Retriever:
    """Finds the facts of a scope that answer a question, and in ``neighbours`` those that are like a fact.

    The index belongs to the retriever: nobody else writes to it. It is held in memory and filled again after a restart
    from the vectors kept in the store, so nothing is embedded twice. All methods may be called from several threads.

    Args:
        store: the facts, their change log, and the vectors kept for ``embedder.id``.
        embedder: embeds facts and questions.
        index: an empty index.
        near_duplicate: cosine from which facts share a slot, in (0, 1]; None turns that off.
        clock: seconds, never going back; when parked facts are tried again.

    Raises:
        InvalidInputError: the index is not empty, or ``near_duplicate`` is out of range.
    """

    def __init__(
        self,
        store: FactStore,
        embedder: Embedder,
        index: VectorIndex,
        *,
        near_duplicate: float | None = NEAR_DUPLICATE_COSINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if near_duplicate is not None and not 0.0 < near_duplicate <= 1.0:
            raise InvalidInputError(f"near_duplicate is {near_duplicate}, want a cosine in (0, 1], or None for off.")
        self.store = store
        self.embedder = embedder
        self.index = index
        self._near_duplicate = near_duplicate
        self._keeper = IndexKeeper(store, embedder, index, clock)
        self.neighbours = Neighbours(store, self._keeper)
        self._desk = EmbeddingDesk(embedder)

    @property
    def failures(self) -> dict[str, Failure]:
        """Facts that could not be embedded, by id (see ``IndexKeeper.failures``)."""
        return self._keeper.failures

    def sync(self) -> int:
        """Catch up with the store; returns how many facts were looked at (see ``IndexKeeper.sync``)."""
        return self._keeper.sync()

    def forget(self, fact_ids: Collection[str]) -> None:
        """Take deleted facts out of the index now (see ``IndexKeeper.forget``)."""
        self._keeper.forget(fact_ids)

    def close(self) -> None:
        """Take no more questions."""
        self._desk.close()

    def check_integrity(self) -> None:
        """Verify the index against the record; raises ``StoreError`` (see ``IndexKeeper.check_integrity``)."""
        self._keeper.check_integrity()

    def ask(self, query: str) -> Question:
        """Begin to embed a question; ``search`` takes it in place of the text.

        Raises:
            InvalidInputError: the query is blank or holds a lone surrogate.
        """
        return self._desk.ask([query])[0]

    def search(
        self,
        query: str | Question,
        scope: Scope,
        k: int,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        fresh: bool = True,
    ) -> list[ScoredFact]:
        """Find the ``k`` best facts that ``scope`` covers, best first; ``k`` come back if ``k`` exist.

        Facts of other scopes are left out before ranking. Facts deleted or changed meanwhile are dropped, and
        near-duplicates give up their slot; the next best move up.

        Args:
            query: the question; not blank.
            scope: whose facts, see ``Scope.covers``.
            k: at least 1.
            threshold: where given, only facts of at least this cosine, in [-1, 1].
            exclude: ids of facts that shall not be found; the next best take their slots.
            fresh: call ``sync`` first. False searches what is indexed, and never waits behind a bulk import.

        Raises:
            InvalidInputError: the query is blank or holds a lone surrogate, ``k`` or ``threshold`` is out of range, or
                ``exclude`` is no collection of ids.
            EmbeddingError: the embedder failed on the query; nothing was searched.
        """
        wanted = _Wanted.of(k, threshold, exclude)
        vector = (query if isinstance(query, Question) else self.ask(query)).vector()
        if fresh:
            self.sync()
        return self._fill(vector, scope, wanted, self._keeper.search(vector, wanted.fetch, scope), may_resync=fresh)

    def search_many(
        self,
        queries: Sequence[str],
        scopes: Sequence[Scope],
        k: int,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
    ) -> list[list[ScoredFact] | InferScaleError]:
        """What ``search`` finds for each query in its own scope: embedded together, searched together.

        Returns:
            For each query its facts, or the error that ``search`` would have raised for it alone.

        Raises:
            InvalidInputError: ``k``, ``threshold`` or ``exclude`` is wrong, or there is not one scope for each query.
        """
        wanted = _Wanted.of(k, threshold, exclude)
        if len(queries) != len(scopes):
            raise InvalidInputError(f"got {len(queries)} queries and {len(scopes)} scopes; want one scope for each.")
        out: list[list[ScoredFact] | InferScaleError] = [*map(_refusal, queries)]
        sound = [at for at, refused in enumerate(out) if not isinstance(refused, InferScaleError)]
        vectors: dict[int, np.ndarray] = {}
        for at, question in zip(sound, self._desk.ask([queries[at] for at in sound]), strict=True):
            try:
                vectors[at] = question.vector()
            except EmbeddingError as error:
                out[at] = error
        self.sync()
        if not vectors:
            return out
        whose = [scopes[at] for at in vectors]
        hits = self._keeper.search_many(np.stack(list(vectors.values())), wanted.fetch, whose)
        facts = self.store.get_many(hit.id for some in hits for hit in some)
        for (at, vector), some in zip(vectors.items(), hits, strict=True):
            out[at] = self._fill(vector, scopes[at], wanted, some, may_resync=True, facts=facts)
        return out

    def _fill(
        self,
        vector: np.ndarray,
        scope: Scope,
        wanted: _Wanted,
        hits: Sequence[Hit],
        *,
        may_resync: bool,
        facts: Mapping[str, Fact] | None = None,
    ) -> list[ScoredFact]:
        """Fill the slots from ``hits``, the ``wanted.fetch`` best, and from more where those do not suffice.

        ``facts`` are those of the hits, where they have been read already.
        """
        fetch = wanted.fetch
        while True:
            good = [hit for hit in hits if wanted.threshold is None or hit.score >= wanted.threshold]
            candidates = [hit for hit in good if hit.id not in wanted.exclude]
            known = self.store.get_many([hit.id for hit in candidates]) if facts is None else facts
            found, changed = self._select(candidates, known, scope, wanted.k)
            if changed and may_resync:  # facts updated since the last sync: index them, and look once more
                may_resync = False
                self.sync()
            elif len(found) == wanted.k or len(hits) < fetch or len(good) < len(hits):
                return found
            else:
                fetch *= 2
            facts = None
            hits = self._keeper.search(vector, fetch, scope)

    def scores(self, query: str, fact_ids: Collection[str]) -> dict[str, float]:
        """Cosines in [-1, 1] of the question and each of these facts, for callers that rank something facts stand for.

        The scopes are the caller's to check. Facts without a vector (deleted, or not embeddable) are left out.

        Raises:
            InvalidInputError: the query is blank or holds a lone surrogate.
            EmbeddingError: the embedder failed on the query.
        """
        vector = unit_rows(self.ask(query).vector()[None], ["the query"])[0]
        self.sync()
        indexed = self._keeper.snapshot(list(dict.fromkeys(fact_ids)))
        if not indexed:
            return {}
        rows = np.stack([held for _, held in indexed.values()])
        return dict(zip(indexed, cosines(rows, vector).tolist(), strict=True))

    def _select(
        self, hits: Sequence[Hit], facts: Mapping[str, Fact], scope: Scope, k: int
    ) -> tuple[list[ScoredFact], bool]:
        """Drop the outdated hits and merge near-duplicates; also whether one was updated meanwhile."""
        indexed = self._keeper.snapshot([hit.id for hit in hits])
        known = [hit for hit in hits if hit.id in facts and scope.covers(facts[hit.id].scope)]
        live = [hit for hit in known if hit.id in indexed and indexed[hit.id][0] == facts[hit.id].revision]
        kept: list[Hit] = []
        duplicates: list[list[str]] = []
        directions = np.empty((min(k, len(live)), self.embedder.dim if live else 0))
        for hit in live:
            direction = indexed[hit.id][1].astype(np.float64)
            leader = self._leader(directions[: len(kept)], direction)
            if leader is not None:
                duplicates[leader].append(hit.id)
            elif len(kept) < k:
                directions[len(kept)] = direction
                kept.append(hit)
                duplicates.append([])
        found = [ScoredFact(facts[h.id], h.score, tuple(ids)) for h, ids in zip(kept, duplicates, strict=True)]
        return found, len(live) < len(known)

    def _leader(self, kept: np.ndarray, vector: np.ndarray) -> int | None:
        """Place of the best-ranked kept fact (row of ``kept``) that ``vector`` nearly repeats."""
        if self._near_duplicate is None or not len(kept):
            return None
        # A row at a time: the product of whole matrices would be shared out to threads, which wait for one another
        # where an engine keeps the cores busy.
        near = kept @ vector >= self._near_duplicate - 1e-6  # float32 rows are not quite of length 1
        first = int(near.argmax())
        return first if near[first] else None


@dataclass(frozen=True)
class _Wanted:
    """What a search is to come back with."""

    k: int
    threshold: float | None
    exclude: frozenset[str]

    @classmethod
    def of(cls, k: int, threshold: float | None, exclude: Collection[str]) -> _Wanted:
        """Check the arguments of a search.

        Raises:
            InvalidInputError: one is out of range.
        """
        k = check_k(k)
        if threshold is not None and not (isinstance(threshold, Real) and -1.0 <= threshold <= 1.0):
            raise InvalidInputError(f"threshold is {threshold!r}, want a cosine in [-1, 1], or None.")
        return cls(k, threshold, _check_ids(exclude))

    @property
    def fetch(self) -> int:
        """Hits to ask for: spare ones stand in for near-duplicates and for what was deleted meanwhile."""
        return self.k + max(self.k // 2, 8) + len(self.exclude)


def _refusal(query: object) -> list[ScoredFact] | InferScaleError:
    try:
        check_question(query)
    except InvalidInputError as error:
        return error
    return []


def _check_ids(exclude: object) -> frozenset[str]:
    """A string is a collection of its characters: taken for one, it would exclude nothing without a word."""
    if isinstance(exclude, str | bytes) or not isinstance(exclude, Collection):
        raise InvalidInputError(f"exclude is {exclude!r}; wanted a collection of fact ids, such as [fact.id].")
    return frozenset(exclude)
