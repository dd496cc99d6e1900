"""In which order recalled facts stand in a prompt."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Literal, get_args

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.scope import Scope

Order = Literal["sticky", "ranked"]
REMEMBERED_SCOPES = 4_096


def check_order(order: object) -> Order:
    """The order if it is one.

    Raises:
        InvalidInputError: it is not.
    """
    if order not in get_args(Order):
        raise InvalidInputError(f"order is {order!r}; wanted {' or '.join(map(repr, get_args(Order)))}.")
    return order  # type: ignore[return-value]


class PlacedFacts:
    """Remembers for each scope which facts stood in its last prompt, and puts those of the next one in like order.

    vLLM's prefix cache shares blocks as far as two prompts begin alike. So what is recalled again keeps its place, as
    far as what stood before it is recalled again too, and what is new comes behind. Only ids are held, in this
    process, for the scopes asked last; a scope sees nothing of another, not even of the same user. Thread-safe.
    """

    def __init__(self, capacity: int = REMEMBERED_SCOPES) -> None:
        self._capacity = capacity
        self._placed: OrderedDict[Scope, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def place(self, scope: Scope, ranked: Sequence[str], refresh: int, order: Order) -> list[str]:
        """Ids in prompt order, remembered as the scope's last.

        Args:
            scope: whose question it was.
            ranked: fact ids, best first, each once.
            refresh: how many of the best are prefilled as text: they stand at the very end, the best last.
            order: ``"ranked"``: the best last; ``"sticky"``: what stood in the last prompt first, in its old order,
                then what is new, the best last. The same question twice gives the same order twice.
        """
        late, rest = ranked[:refresh], ranked[refresh:]
        with self._lock:
            before = self._placed.pop(scope, ()) if order == "sticky" else ()
            wanted = frozenset(rest)
            kept = [fact_id for fact_id in before if fact_id in wanted]
            known = frozenset(kept)
            body = [*kept, *(fact_id for fact_id in reversed(rest) if fact_id not in known)]
            self._placed[scope] = tuple(body)
            self._placed.move_to_end(scope)
            while len(self._placed) > self._capacity:
                self._placed.popitem(last=False)
        return [*body, *reversed(late)]

    def forget(self, fact_ids: Collection[str]) -> None:
        """Drop deleted facts."""
        gone = frozenset(fact_ids)
        with self._lock:
            for scope, placed in self._placed.items():
                if not gone.isdisjoint(placed):
                    self._placed[scope] = tuple(fact_id for fact_id in placed if fact_id not in gone)

    def reset(self, scope: Scope) -> None:
        """Forget what was placed for a scope and for every one below it."""
        with self._lock:
            for other in [other for other in self._placed if scope.covers(other)]:
                del self._placed[other]
