"""Saving a batch: bad items are set aside, retries recognised, repeated statements joined, the rest written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from inferscale_memory.facts.checking import Batch, SoundFact
from inferscale_memory.facts.models import AddResult, Fact, ItemError
from inferscale_memory.facts.rows import batches, log_change, now, scope_columns, to_facts
from inferscale_memory.facts.session import take_numbers
from inferscale_memory.facts.tables import FactRow, IdempotencyRow, RevisionRow, SourceRow, TurnRow
from inferscale_memory.scope import Scope

# Sequence numbers one item can use: the fact, its revision and its change; each of its sources takes one more.
_NUMBERS_PER_ITEM = 3


@dataclass
class _Known:
    """What the database already holds of a batch, kept up to date while it is written."""

    turns: dict[str, TurnRow]
    saves: dict[str, IdempotencyRow]
    by_text: dict[str, FactRow]
    by_id: dict[str, FactRow]
    sources: set[tuple[str, str]]


@dataclass
class _Plan:
    """Which items go where. ``replayed`` were saved by an earlier call with the same key."""

    apply: list[SoundFact] = field(default_factory=list)
    replayed: list[tuple[SoundFact, FactRow]] = field(default_factory=list)
    errors: list[ItemError] = field(default_factory=list)


def save(session: Session, scope: Scope, batch: Batch) -> AddResult:
    """Write a checked batch inside the caller's write transaction.

    Raises:
        sqlalchemy.exc.IntegrityError: another writer saved the same statement at the same time, on a database that
            does not serialise writers; roll back and call again.
    """
    known = _look_up(session, scope, batch)
    plan = _sort(batch, known)
    cited = [turn_id for item in plan.apply for turn_id in item.turn_ids]
    numbers = take_numbers(session, len(batch.turns) + _NUMBERS_PER_ITEM * len(plan.apply) + len(cited))
    _save_turns(session, scope, batch, plan, known, numbers)
    rows: dict[int, FactRow] = {item.position: row for item, row in plan.replayed}
    created: list[str] = []
    for item in plan.apply:
        row = known.by_text.get(item.text_key)
        if row is None:
            row = _create(session, scope, item, known, numbers)
            created.append(row.id)
            _cite(session, row, item, known, numbers)
        elif _cite(session, row, item, known, numbers):
            _record(session, row, item, next(numbers), "source")
        if item.save_key is not None and item.save_key not in known.saves:
            save_row = IdempotencyRow(key=item.save_key, fact_id=row.id, text_key=item.text_key)
            known.saves[item.save_key] = save_row
            session.add(save_row)
        rows[item.position] = row
    session.flush()
    facts = _as_facts(session, [rows[position] for position in sorted(rows)])
    errors = sorted((*batch.errors, *plan.errors), key=lambda error: error.index)
    return AddResult(facts=tuple(facts), created=tuple(created), errors=tuple(errors))


def _look_up(session: Session, scope: Scope, batch: Batch) -> _Known:
    known = _Known({}, {}, {}, {}, set())
    wanted_turns = [*batch.turns, *(turn_id for item in batch.facts for turn_id in item.turn_ids)]
    for ids in batches(wanted_turns):
        known.turns.update((row.id, row) for row in session.scalars(select(TurnRow).where(TurnRow.id.in_(ids))))
    for keys in batches(item.save_key for item in batch.facts if item.save_key is not None):
        query = select(IdempotencyRow).where(IdempotencyRow.key.in_(keys))
        known.saves.update((row.key, row) for row in session.scalars(query))
    for keys in batches(item.text_key for item in batch.facts):
        same = select(FactRow).where(FactRow.scope_key == scope.key, FactRow.text_key.in_(keys))
        known.by_text.update((row.text_key, row) for row in session.scalars(same))
    for ids in batches(save_row.fact_id for save_row in known.saves.values()):
        saved = session.scalars(select(FactRow).where(FactRow.id.in_(ids)))
        known.by_id.update((row.id, row) for row in saved)
    for ids in batches(row.id for row in known.by_text.values()):
        pairs = session.execute(select(SourceRow.fact_id, SourceRow.turn_id).where(SourceRow.fact_id.in_(ids)))
        known.sources.update((fact_id, turn_id) for fact_id, turn_id in pairs)
    return known


def _sort(batch: Batch, known: _Known) -> _Plan:
    plan = _Plan()
    for item in batch.facts:
        before = known.saves.get(item.save_key) if item.save_key is not None else None
        missing = [name for turn_id, name in item.sources if turn_id not in known.turns and turn_id not in batch.turns]
        if before is not None and before.text_key != item.text_key:
            plan.errors.append(item.error("its idempotency key was already used for another text; use a new key"))
        elif before is not None:
            plan.replayed.append((item, known.by_id[before.fact_id]))
        elif missing:
            plan.errors.append(
                item.error(f"it names the turn {missing[0]!r}, which is neither saved in this scope nor in this call")
            )
        else:
            plan.apply.append(item)
    return plan


def _save_turns(
    session: Session, scope: Scope, batch: Batch, plan: _Plan, known: _Known, numbers: Iterator[int]
) -> None:
    """Save the turns that applied items name, and those no item names (system and tool messages).

    The latter not on a replay: without ids of their own they would be saved once per retry. Turns that only refused
    items name are left out, for no fact would lead to them when their text must go.
    """
    cited = {turn_id for item in plan.apply for turn_id in item.turn_ids}
    unnamed = set(batch.turns) - batch.cited if not plan.replayed else set()
    for turn_id, turn in batch.turns.items():
        if turn_id not in cited and turn_id not in unnamed:
            continue
        row = known.turns.get(turn_id)
        if row is None:
            row = TurnRow(
                id=turn_id,
                external_id=turn.id,
                seq=next(numbers),
                role=turn.role,
                speaker=turn.speaker,
                text=turn.text,
                created_at=turn.created_at or now(),
                **scope_columns(scope),
            )
            known.turns[turn_id] = row
            session.add(row)
        elif not row.text:
            # Emptied when a fact of it was deleted; the same message was sent again.
            row.text = turn.text
    session.flush()


def _create(session: Session, scope: Scope, item: SoundFact, known: _Known, numbers: Iterator[int]) -> FactRow:
    at = now()
    row = FactRow(
        id=uuid.uuid4().hex,
        seq=next(numbers),
        text=item.text,
        text_key=item.text_key,
        speaker=item.speaker,
        revision=1,
        meta=item.metadata,
        created_at=item.created_at or at,
        updated_at=at,
        **scope_columns(scope),
    )
    session.add(row)
    session.flush()
    known.by_text[item.text_key] = row
    _record(session, row, item, next(numbers), "add")
    log_change(session, next(numbers), row.id, row.principal, "upsert")
    return row


def _cite(session: Session, row: FactRow, item: SoundFact, known: _Known, numbers: Iterator[int]) -> bool:
    """Add the item's sources to the fact; whether any was new."""
    fresh = [turn_id for turn_id in item.turn_ids if (row.id, turn_id) not in known.sources]
    for turn_id in fresh:
        known.sources.add((row.id, turn_id))
        session.add(SourceRow(fact_id=row.id, turn_id=turn_id, seq=next(numbers)))
    return bool(fresh)


def _record(session: Session, row: FactRow, item: SoundFact, seq: int, kind: str) -> None:
    session.add(
        RevisionRow(
            seq=seq, fact_id=row.id, revision=row.revision, text=item.text, meta=item.metadata, at=now(), kind=kind
        )
    )


def _as_facts(session: Session, rows: Sequence[FactRow]) -> list[Fact]:
    distinct = list({row.id: row for row in rows}.values())
    facts = {fact.id: fact for fact in to_facts(session, distinct)}
    return [facts[row.id] for row in rows]
