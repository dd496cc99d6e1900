"""The verbs of a memory that are about questions: search, recall, name, explain."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from inferscale_memory import metrics
from inferscale_memory.ahead import Wanted
from inferscale_memory.encoding.policies import chosen_at, chunk_policies, wanted_at
from inferscale_memory.errors import InferScaleError, InvalidInputError
from inferscale_memory.facts import ItemError
from inferscale_memory.handle import ExplainedFact, Explanation, Handle, Handles
from inferscale_memory.memory_encoding import MemoryEncoding
from inferscale_memory.order import Order, check_order
from inferscale_memory.quality import Refresh, check_refresh
from inferscale_memory.retrieval import Question, ScoredFact
from inferscale_memory.scope import Scope
from inferscale_memory.text import preview

logger = logging.getLogger(__name__)

MAX_K = 10_000
REMEMBERED_SCORES = 1_000


def is_count(k: object) -> bool:
    """Whether it is a number of facts that can be recalled."""
    return isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= MAX_K


def check_options(k: object, refresh: object) -> None:
    """Refuse options of a wrapper that recalls when they are given, not at the first question; None is the memory's.

    Raises:
        InvalidInputError: one is out of range.
    """
    if k is not None and not is_count(k):
        raise InvalidInputError(f"k is {k!r}; wanted a number of facts, 1 to {MAX_K:,}, or None.")
    if refresh is not None:
        check_refresh(refresh)


class _Naming(NamedTuple):
    """How a handle is made of what was found."""

    refresh: Refresh
    order: Order


class MemoryFinding(MemoryEncoding):
    """A part of ``SyncMemory``, by whose rules its methods go."""

    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        **scope: Any,
    ) -> list[ScoredFact]:
        """Find the ``k`` facts that answer a question, best first; ``k`` come if ``k`` exist beside ``exclude``.

        Raises:
            InvalidInputError: the query is blank, or ``k`` is not 1 to 10,000.
            EmbeddingError: the embedder failed.
        """
        owner, wanted = self._owner(scope), self._wanted(k)
        return self._found(self.retriever.ask(query), owner, wanted, threshold, exclude)

    def recall(
        self,
        query: str,
        k: int | None = None,
        refresh: Refresh | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        order: Order | None = None,
        **scope: Any,
    ) -> Handle:
        """Find facts and name them by a handle, to be put into a system message.

        Args:
            query: the question.
            k: how many facts, default from the settings (10).
            refresh: how many of the best-ranked are prefilled as text behind the injected ones; ``refresh=k`` or more,
                or ``"all"``, is plain prompt injection, with no token injected. ``"auto"`` is as few as reach
                ``INFERSCALE_KL_TARGET``, or as many as ``INFERSCALE_TTFT_BUDGET`` allows, or, with both, as few as
                reach the target within the budget; with neither, as few as keep the bound of the profile that
                ``inferscale tune`` has measured. Default from the settings (0), or by the ``quality`` of the memory.
            threshold: leave out facts of a lower cosine.
            exclude: ids of facts that take no slot, such as those of turns that the prompt holds as text.
            order: how the facts stand in the prompt: ``"sticky"``, those of the scope's last question first and in
                their places, so that the engine finds them in its own prefix cache; ``"ranked"``, the best last.
                Default from the settings (sticky).
            scope: whose memory.

        Raises:
            InvalidInputError: as ``search``, ``refresh`` is negative, or there is no such order.
        """
        owner, wanted, naming = self._owner(scope), self._wanted(k), self._naming(refresh, order)
        return self._recalled(self.retriever.ask(query), owner, wanted, threshold, exclude, naming)

    def recall_many(
        self,
        queries: Sequence[str],
        scopes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        k: int | None = None,
        refresh: Refresh | None = None,
        *,
        threshold: float | None = None,
        exclude: Collection[str] = (),
        order: Order | None = None,
    ) -> Handles:
        """``recall`` for many questions at once, of one scope or of many: embedded together, searched together.

        Args:
            queries: the questions.
            scopes: of each question the keywords of its scope, such as ``{"user_id": "alice"}``; or one for all.
            k: as in ``recall``, for each.
            refresh: as in ``recall``.
            threshold: as in ``recall``.
            exclude: as in ``recall``.
            order: as in ``recall``.

        Returns:
            A list with one handle per question. A question that cannot be embedded is named in its ``errors`` and has
            a handle of no facts; the others are answered.

        Raises:
            ScopeError: a scope is none; nothing is searched.
            InvalidInputError: as ``recall``, or there is not one scope for each question.
        """
        wanted, naming = self._wanted(k), self._naming(refresh, order)
        queries = _checked_queries(queries)
        if isinstance(scopes, Mapping):
            scopes = [scopes] * len(queries)
        if len(scopes) != len(queries):
            raise InvalidInputError(f"got {len(queries)} queries and {len(scopes)} scopes; want one scope for each.")
        owners = [self._owner(ids) for ids in scopes]
        self._check_open()
        with metrics.RECALL_SECONDS.time():
            results = self.retriever.search_many(queries, owners, wanted, threshold=threshold, exclude=exclude)
            errors = tuple(
                ItemError(index, str(result), preview(queries[index]))
                for index, result in enumerate(results)
                if isinstance(result, InferScaleError)
            )
            found = [[] if isinstance(result, InferScaleError) else result for result in results]
            return Handles((self._name(*one, naming) for one in zip(found, owners, strict=True)), errors)

    def name(
        self, found: Sequence[ScoredFact], refresh: Refresh | None = None, *, order: Order | None = None, **scope: Any
    ) -> Handle:
        """A handle for facts that ``search`` or ``recall`` has found in this scope, best first; or for some of them.

        Facts of another scope are named in vain: the handle does not resolve to them.

        Raises:
            InvalidInputError: ``refresh`` is negative, or there is no such order.
        """
        return self._name(found, self._owner(scope), self._naming(refresh, order))

    def explain(self, handle: str, **scope: Any) -> Explanation:
        """What a handle stands for: facts, scores, sources, and what of it is encoded and on disk.

        Raises:
            HandleError: it does not open (in this scope, if one is given).
        """
        self._check_open()
        record = self.handles.open(str(handle), self._owner(scope) if scope else None)
        stored = self.store.get_many(fact_id for fact_id, _ in record.facts)
        found = {fact_id: fact for fact_id, fact in stored.items() if record.scope.covers(fact.scope)}
        keys: dict[str, str] = {}
        if self.engine is not None:
            refs = self.ledger.lookup_all(list(found), self.engine.fingerprint, chunk_policies(self.policy))
            placed = [fact_id for fact_id, _ in record.facts if fact_id in refs]
            keys = {fact_id: chosen_at(self.policy, at, refs[fact_id]).key for at, fact_id in enumerate(placed)}
        scores = self._scores_of(str(handle))
        first_refreshed = len(record.facts) - record.refresh
        facts = tuple(
            ExplainedFact(
                fact=found[fact_id],
                score=scores.get(fact_id),
                encoded=fact_id in keys,
                resident=fact_id in keys and self.chunks.exists(keys[fact_id]),
                refreshed=at >= first_refreshed,
            )
            for at, (fact_id, _) in enumerate(record.facts)
            if fact_id in found
        )
        deleted = record.forgotten + len(record.facts) - len(facts)
        return Explanation(record.scope, record.expires_at, record.refresh, facts, deleted)

    # -- what the methods above and their async twins share -----------------------------------------------------------

    def _wanted(self, k: int | None) -> int:
        wanted = self.settings.k if k is None else k
        if not is_count(wanted):
            raise InvalidInputError(f"k is {wanted!r}; wanted the number of facts, 1 to {MAX_K:,}.")
        return wanted

    def _naming(self, refresh: Refresh | None, order: Order | None) -> _Naming:
        return _Naming(self.dial.given(refresh), check_order(self.settings.order if order is None else order))

    def _found(
        self, question: Question, owner: Scope, k: int, threshold: float | None, exclude: Collection[str]
    ) -> list[ScoredFact]:
        found = self.retriever.search(question, owner, k, threshold=threshold, exclude=exclude)
        metrics.SEARCH_SECONDS.observe(time.perf_counter() - question.asked_at)
        return found

    def _recalled(
        self,
        question: Question,
        owner: Scope,
        k: int,
        threshold: float | None,
        exclude: Collection[str],
        naming: _Naming,
    ) -> Handle:
        handle = self._name(self._found(question, owner, k, threshold, exclude), owner, naming)
        metrics.RECALL_SECONDS.observe(time.perf_counter() - question.asked_at)
        return handle

    def _name(self, found: Sequence[ScoredFact], owner: Scope, naming: _Naming) -> Handle:
        """A handle for facts that were found in a scope, best first; every recall ends here."""
        by_id = {scored.fact.id: scored for scored in found}
        ranked = [scored.fact.id for scored in found]
        ranks = {fact_id: rank for rank, fact_id in enumerate(ranked)}
        refresh = self.dial.refresh(naming.refresh, found)
        placed = self._placed.place(owner, ranked, refresh, naming.order)
        token = self.handles.mint(
            owner,
            [(fact_id, by_id[fact_id].fact.revision) for fact_id in placed],
            refresh,
            ranks=[ranks[fact_id] for fact_id in placed],
        )
        if self._ahead is not None:
            # The refreshed ones, the last, are prefilled.
            injected = placed[: len(placed) - refresh]
            self._ahead.recalled(
                Wanted(fact_id, by_id[fact_id].fact.revision, wanted_at(self.policy, place))
                for place, fact_id in enumerate(injected)
            )
        with self._scores_lock:
            self._scores[token] = {fact_id: scored.score for fact_id, scored in by_id.items()}
            self._scores.move_to_end(token)
            while len(self._scores) > REMEMBERED_SCORES:
                self._scores.popitem(last=False)
        return Handle(token, list(found))


def _checked_queries(queries: object) -> list[str]:
    """A string is a sequence of its characters: taken for one, each would be a question."""
    if isinstance(queries, str | bytes) or not isinstance(queries, Sequence):
        raise InvalidInputError(f"queries is a {type(queries).__name__}; wanted a list of questions.")
    return list(queries)
