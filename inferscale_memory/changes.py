"""Facts saved and forgotten together with other rows of the database: one transaction, erased everywhere after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from inferscale_memory.facts import AddResult, Fact, NewFact
from inferscale_memory.items.removal import erase_items_of, erase_items_within
from inferscale_memory.scope import Scope

if TYPE_CHECKING:
    from inferscale_memory.sync_memory import SyncMemory


class Changes:
    """What a block of ``changing`` does to the facts. Everything is done, or nothing."""

    def __init__(self, memory: SyncMemory, tx: Session) -> None:
        self._memory = memory
        self.tx = tx
        """The open write transaction; other tables may be written in it."""
        self.added = False
        self.deleted: list[str] = []

    def add(self, facts: Sequence[NewFact], scope: Scope) -> AddResult:
        """See ``FactStore.add``."""
        self.added = True
        return self._memory.store.add(facts, scope, tx=self.tx)

    def delete(self, fact_id: str, scope: Scope) -> Fact:
        """Remove a fact that ``scope`` may see, and the items that hold its text.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        seen = self._memory.store.get(fact_id, scope, tx=self.tx) is not None
        needless = erase_items_of(self.tx, [fact_id]) if seen else set()
        fact = self._memory.store.delete(fact_id, scope, tx=self.tx)
        self._forget([fact, *self._memory.store.delete_many(needless, tx=self.tx)])
        return fact

    def delete_many(self, fact_ids: Collection[str]) -> None:
        """Remove facts of any scope, for callers that have checked it, and the items that hold their text."""
        needless = erase_items_of(self.tx, fact_ids)
        self._forget(self._memory.store.delete_many({*fact_ids, *needless}, tx=self.tx))

    def delete_all(self, scope: Scope) -> tuple[Fact, ...]:
        """Remove every fact, turn and item whose scope names all that ``scope`` names; returns the facts."""
        erase_items_within(self.tx, scope)
        facts = self._memory.store.delete_all(scope, tx=self.tx)
        self._forget(facts)
        return facts

    def _forget(self, facts: Sequence[Fact]) -> None:
        """Take what was derived from deleted facts out of the database too."""
        if not facts:
            return
        ids = [fact.id for fact in facts]
        turns = sorted({turn for fact in facts for turn in fact.turn_ids})
        self._memory.ledger.forget(ids, turns, tx=self.tx)
        by_owner: dict[str, list[Fact]] = {}
        for fact in facts:
            by_owner.setdefault(fact.scope.principal, []).append(fact)
        for group in by_owner.values():
            self._memory.handles.forget_facts([fact.id for fact in group], self.tx, scope=group[0].scope)
        self.deleted += ids


@contextmanager
def changing(memory: SyncMemory) -> Iterator[Changes]:
    """A write transaction on the memory, committed at the end of the block; keep it short.

    After the commit deleted facts are erased from index, KV and files, and new ones are queued for encoding. A crash
    before that leaves marks in the database, by which the next opening finishes the work.

    Raises:
        StoreError: nothing was changed; or, if the message says so, it was and no question is answered from what was
            deleted any more, but files with traces of it could not be erased yet.
    """
    memory._check_open()
    with memory.store.transaction() as tx:
        changes = Changes(memory, tx)
        yield changes
    if changes.deleted:
        memory._after_forgetting(changes.deleted, "deleted")
    elif changes.added:
        memory._notify()
