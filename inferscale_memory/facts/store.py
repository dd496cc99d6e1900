"""``FactStore``: what is remembered, as text, in a relational database shared by threads and processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from inferscale_memory.errors import FactNotFoundError, InvalidInputError
from inferscale_memory.facts.checking import check_batch, turn_key
from inferscale_memory.facts.conversation import facts_of_turns, newest_turns
from inferscale_memory.facts.derived import DerivedData
from inferscale_memory.facts.known import KnownFacts
from inferscale_memory.facts.models import (
    AddResult,
    Fact,
    NewFact,
    NewTurn,
    Page,
    Revision,
    Turn,
)
from inferscale_memory.facts.neighbours import preceding_facts, preceding_turns, session_facts
from inferscale_memory.facts.removal import erase, erase_turns
from inferscale_memory.facts.rows import batches, find, to_facts, to_revision, to_turn, visible, within
from inferscale_memory.facts.tables import FactRow, RevisionRow, TurnRow
from inferscale_memory.facts.updating import revise
from inferscale_memory.facts.writing import save
from inferscale_memory.scope import Scope
from inferscale_memory.text import MAX_FACT_CHARS

MAX_PAGE = 1000

# Inside the class the name ``list`` is the method.
_Facts: TypeAlias = list[Fact]
_Turns: TypeAlias = list[Turn]
_Revisions: TypeAlias = list[Revision]


class FactStore(DerivedData):
    """Turns, facts and their history.

    Every method is one transaction of its own, or joins the one passed as ``tx`` (see ``transaction``). Methods that
    take a scope see what ``Scope.covers`` allows; a fact of another scope is answered like one that does not exist.
    Safe to share between threads; processes share the database. Every method may raise ``StoreError`` when the
    database is full, read-only, locked for longer than its timeout, or unreachable.
    """

    def __init__(self, engine: Engine, *, max_fact_chars: int = MAX_FACT_CHARS) -> None:
        """Work on ``engine``, whose tables exist (``migrations.upgrade``).

        Args:
            engine: from ``inferscale_memory.db.open_database``.
            max_fact_chars: longest fact or turn taken, in characters.
        """
        if max_fact_chars < 1:
            raise InvalidInputError(f"max_fact_chars must be at least 1, got {max_fact_chars}.")
        super().__init__(engine)
        self.max_fact_chars = max_fact_chars
        self._known = KnownFacts()

    # -- saving ------------------------------------------------------------------------------------------------------

    def add(
        self,
        items: Sequence[NewFact],
        scope: Scope,
        *,
        turns: Sequence[NewTurn] = (),
        idempotency_key: str | None = None,
        tx: Session | None = None,
    ) -> AddResult:
        """Save facts and the turns they came from.

        A bad item is returned in ``errors`` and does not keep the others from being saved. A statement that the scope
        already holds (equal after ``text.normalise``) gives the fact that is there, with the new turns among its
        sources. Its metadata stays; what came with the repetition is in the history.

        A retry is recognised by ``idempotency_key`` and the item's place, else by scope, turn ids and text, and gives
        the same facts even if they were updated since. Deleting a fact forgets its keys.

        Args:
            items: facts; ``turn_ids`` name turns of this call or of the scope. See ``coerce_items``.
            scope: the owner. Nothing in an item, its metadata included, can change it.
            turns: messages to keep, named by an item or not.
            idempotency_key: the caller's name for this call, unique within the scope; the same key with other texts
                yields item errors.
            tx: a session of ``transaction``.

        Raises:
            InvalidInputError: the call, not an item, is wrong.
        """
        batch = check_batch(items, turns, scope, idempotency_key=idempotency_key, max_chars=self.max_fact_chars)
        return self._write(lambda session: save(session, scope, batch), tx)

    def update(
        self,
        fact_id: str,
        scope: Scope,
        *,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tx: Session | None = None,
    ) -> Fact:
        """Replace the text or the metadata, keep the old ones in the history, raise the revision and the epoch.

        Args:
            fact_id: the fact.
            scope: must cover it.
            text: the new text, whole; None keeps it.
            metadata: the new metadata, whole (``{}`` clears it); None keeps it. The owner never changes.
            tx: a session of ``transaction``.

        Returns:
            The fact as it is now; unchanged, and no new revision, where nothing differs.

        Raises:
            FactNotFoundError: no such fact in this scope.
            InvalidInputError: unusable text or metadata, or another fact of the scope already says this.
        """
        return self._write(
            lambda session: revise(session, fact_id, scope, text, metadata, max_chars=self.max_fact_chars), tx
        )

    def delete(self, fact_id: str, scope: Scope, *, tx: Session | None = None) -> Fact:
        """Remove a fact with its history, vectors, keys and the text of its source turns; returns what it was.

        The caller clears what is derived elsewhere: KV chunks, handles, indexes, and what was encoded behind the
        fact or behind its turns (``Fact.turn_ids``).

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        return self._write(lambda session: erase(session, [find(session, fact_id, scope)])[0], tx)

    def delete_many(self, ids: Iterable[str], *, tx: Session | None = None) -> _Facts:
        """Remove facts of any scope as ``delete`` does, for callers that have checked it; returns what they were.

        Missing ones are passed over.
        """

        def work(session: Session) -> _Facts:
            rows = [
                row for some in batches(ids) for row in session.scalars(select(FactRow).where(FactRow.id.in_(some)))
            ]
            return erase(session, rows) if rows else []

        return self._write(work, tx)

    def delete_all(self, scope: Scope, *, tx: Session | None = None) -> tuple[Fact, ...]:
        """Remove every fact and turn whose scope names all that ``scope`` names; returns the facts.

        It does not reach upwards: deleting a session leaves what is known of its user in general.
        """

        def work(session: Session) -> tuple[Fact, ...]:
            rows = session.scalars(select(FactRow).where(within(FactRow, scope)).order_by(FactRow.seq)).all()
            removed = tuple(erase(session, rows)) if rows else ()
            turns = session.scalars(select(TurnRow.id).where(within(TurnRow, scope))).all()
            if turns:
                erase_turns(session, turns)
            return removed

        return self._write(work, tx)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, fact_id: str, scope: Scope, *, tx: Session | None = None) -> Fact | None:
        """The fact, or None where the scope may not see it."""
        with self._read(tx) as session:
            try:
                return to_facts(session, [find(session, fact_id, scope)])[0]
            except FactNotFoundError:
                return None

    def get_many(self, ids: Iterable[str], *, tx: Session | None = None) -> dict[str, Fact]:
        """Facts of any scope by id, for callers that have checked the scope; missing ones are left out."""
        with self._read(tx) as session:
            # What a transaction in progress reads may be rolled back, so it is not kept.
            known = self._known if tx is None else KnownFacts(capacity=0)
            return known.read(session, ids)

    def forget_read(self, ids: Iterable[str]) -> None:
        """Drop what this process has kept in memory of deleted or changed facts, after the commit."""
        self._known.forget(ids)

    def get_turns(self, ids: Iterable[str], *, tx: Session | None = None) -> dict[str, Turn]:
        """Turns of any scope by ``Turn.id``; missing ones are left out."""
        with self._read(tx) as session:
            found = (
                row for some in batches(ids) for row in session.scalars(select(TurnRow).where(TurnRow.id.in_(some)))
            )
            return {row.id: to_turn(row) for row in found}

    def turns(self, scope: Scope, *, limit: int | None = None, tx: Session | None = None) -> _Turns:
        """The newest turns of a conversation, oldest first; see ``conversation.newest_turns``.

        Args:
            scope: whose. Turns that name all that it names are given, as ``delete_all`` would remove them: with a
                session that session's only, without one the turns of every session.
            limit: at most so many, 1 or more; None gives all.
            tx: a session of ``transaction``.

        Raises:
            InvalidInputError: ``limit`` is not 1 or more.
        """
        with self._read(tx) as session:
            return newest_turns(session, scope, limit)

    def facts_of_turns(self, turn_ids: Iterable[str], *, tx: Session | None = None) -> dict[str, tuple[str, ...]]:
        """Ids of the facts that name a turn as their source, by ``Turn.id``; turns that no fact names are left out.

        For callers that have checked the scope of the turns.
        """
        with self._read(tx) as session:
            return facts_of_turns(session, turn_ids)

    def facts_of_messages(self, message_ids: Iterable[str], scope: Scope, *, tx: Session | None = None) -> set[str]:
        """Ids of the facts that come from messages saved in exactly this scope under the caller's own ids."""
        stated = self.facts_of_turns([turn_key(scope, message_id) for message_id in message_ids], tx=tx)
        return {fact_id for facts in stated.values() for fact_id in facts}

    def list(self, scope: Scope, *, limit: int = 100, cursor: str | None = None, tx: Session | None = None) -> Page:
        """Facts of the scope, oldest first.

        Args:
            scope: whose.
            limit: 1 to 1,000.
            cursor: ``next_cursor`` of the page before; facts added meanwhile come at the end.
            tx: a session of ``transaction``.

        Raises:
            InvalidInputError: a limit out of range, or a cursor that no page gave.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
            raise InvalidInputError(f"limit must be 1 to {MAX_PAGE}, got {limit!r}.")
        after = _read_cursor(cursor)
        query = select(FactRow).where(visible(FactRow, scope), FactRow.seq > after).order_by(FactRow.seq)
        with self._read(tx) as session:
            facts = to_facts(session, session.scalars(query.limit(limit + 1)).all())
        more = len(facts) > limit
        return Page(tuple(facts[:limit]), str(facts[limit - 1].seq) if more else None)

    def count(self, scope: Scope, *, tx: Session | None = None) -> int:
        """How many facts the scope sees."""
        with self._read(tx) as session:
            return session.scalar(select(func.count()).select_from(FactRow).where(visible(FactRow, scope))) or 0

    def history(self, fact_id: str, scope: Scope, *, tx: Session | None = None) -> _Revisions:
        """What became of a fact, oldest first.

        Raises:
            FactNotFoundError: no such fact in this scope.
        """
        with self._read(tx) as session:
            find(session, fact_id, scope)
            query = select(RevisionRow).where(RevisionRow.fact_id == fact_id).order_by(RevisionRow.seq)
            return [to_revision(row) for row in session.scalars(query)]

    def preceding_facts(self, fact: Fact, n: int, *, tx: Session | None = None) -> _Facts:
        """At most ``n`` facts saved before ``fact``, oldest first, that are seen wherever it is seen.

        That is: of the same principal, of the same session (or of none, if it has none), of its agent or of none.
        """
        with self._read(tx) as session:
            return preceding_facts(session, fact, n)

    def session_facts(self, fact: Fact, n: int, *, tx: Session | None = None) -> _Facts | None:
        """At most ``n`` facts of the same session saved before ``fact``, oldest first, by the same rule.

        The session is that of the scope, else ``"session"`` of the metadata (among the 1,000 facts saved right before);
        None where the fact has neither.
        """
        with self._read(tx) as session:
            return session_facts(session, fact, n)

    def preceding_turns(self, fact: Fact, n: int, *, tx: Session | None = None) -> _Turns:
        """At most ``n`` turns saved before the first source of ``fact``, oldest first, by the same rule.

        Empty for a fact that was not said in a conversation. Turns whose text was deleted are left out.
        """
        with self._read(tx) as session:
            return preceding_turns(session, fact, n)


def _read_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInputError(f"cursor must be the next_cursor of a page, got {cursor!r}.")
    return int(cursor)
