"""What the encoder asks of a memory: facts, what was saved before one, and what is similar to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from inferscale_memory.encoding.policies import Near
from inferscale_memory.errors import StoreError
from inferscale_memory.facts import Fact, FactStore, Turn

if TYPE_CHECKING:
    from inferscale_memory.retrieval import Retriever
    from inferscale_memory.retrieval.neighbours import Neighbours

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds for which an embedder that cannot be used is left alone, doubled each time."""


class MemoryContexts:
    """The ``FactSource`` of a memory's encoder.

    The embedder is opened when a policy first asks for similar facts. As long as it cannot be used, or fails on a
    fact, there are no similar facts for that one: its policy falls back to preceding facts, a warning says so, and the
    fact is encoded again once it has a vector. So a failing embedder neither stops encoding nor parks anything.

    Args:
        store: the facts.
        retriever: opens embedder and index, or gives those that are open.
        clock: seconds, never going back.
    """

    def __init__(
        self, store: FactStore, retriever: Callable[[], Retriever], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._open, self._clock = store, retriever, clock
        self._retriever: Retriever | None = None
        self._not_before, self._pause = 0.0, FIRST_PAUSE

    def get_many(self, ids: Iterable[str]) -> dict[str, Fact]:
        """See ``FactStore.get_many``."""
        return self._store.get_many(ids)

    def preceding_facts(self, fact: Fact, n: int) -> list[Fact]:
        """See ``FactStore.preceding_facts``."""
        return self._store.preceding_facts(fact, n)

    def preceding_turns(self, fact: Fact, n: int) -> list[Turn]:
        """See ``FactStore.preceding_turns``."""
        return self._store.preceding_turns(fact, n)

    def session_facts(self, fact: Fact, n: int) -> list[Fact] | None:
        """See ``FactStore.session_facts``."""
        return self._store.session_facts(fact, n)

    def nearest_facts(self, fact: Fact, n: int) -> list[Near] | None:
        """See ``ContextSource``. Knows the facts that ``embed_some`` or a search has embedded, and embeds none."""
        neighbours = self._neighbours()
        found = None if neighbours is None else neighbours.nearest(fact, n)
        return None if found is None else [Near(*one) for one in found]

    # --- vectors of new facts, see ``encoding.jobs.FactSource`` ---

    def embed_some(self) -> bool:
        """Embed a page of the facts that have no vector yet; whether to call it again."""
        neighbours = self._neighbours()
        if neighbours is None or self._clock() < self._not_before:
            return False
        try:
            caught_up = neighbours.catch_up()
            self._pause = FIRST_PAUSE
            return bool(caught_up)
        except StoreError:
            raise
        except Exception as error:  # an embedder may raise anything
            self._give_up(error)
            return False

    def embedded(self, fact_ids: Iterable[str]) -> dict[str, int]:
        """Of which of these facts there are vectors, and of which revisions."""
        neighbours = self._neighbours()
        return {} if neighbours is None else neighbours.revisions(fact_ids)

    def reached(self, fact_ids: Iterable[str], reach: Mapping[str, float]) -> set[str]:
        """See ``Neighbours.reached``."""
        neighbours = self._neighbours()
        return set() if neighbours is None else neighbours.reached(list(fact_ids), reach)

    def known_until(self) -> int:
        """Sequence number of the last change of the facts that ``nearest_facts`` knows."""
        neighbours = self._neighbours()
        return 0 if neighbours is None else neighbours.known_until

    def _neighbours(self) -> Neighbours | None:
        if self._retriever is None and self._clock() >= self._not_before:
            try:
                self._retriever = self._open()
            except StoreError:
                raise
            except Exception as error:  # opening it runs an embedder's own code too
                self._give_up(error)
        return None if self._retriever is None else self._retriever.neighbours

    def _give_up(self, error: Exception) -> None:
        self._not_before = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        logger.warning(  # what it means for the facts is said by the announcer
            "the embedder cannot be used, tried again in %.0f s at the earliest: %s: %s",
            self._not_before - self._clock(),
            type(error).__name__,
            error,
        )
