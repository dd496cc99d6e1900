"""Writing items: all puts of a call in one transaction, together with the facts that their texts are."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from inferscale_memory.changes import Changes
from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts import NewFact
from inferscale_memory.facts.rows import batches, scope_columns
from inferscale_memory.facts.session import take_numbers
from inferscale_memory.handles import strip_handles
from inferscale_memory.items.models import Namespace, Put
from inferscale_memory.items.namespaces import ScopeOf, check_namespace, checked_path, scope_of
from inferscale_memory.items.reading import item_id
from inferscale_memory.items.removal import erase_items, orphans
from inferscale_memory.items.tables import ItemFactRow, ItemRow
from inferscale_memory.scope import Scope
from inferscale_memory.text import is_blank

_log = logging.getLogger(__name__)

MAX_TTL_MINUTES = 100 * 365 * 24 * 60.0
_UNSYNCED = {"synchronize_session": False}


@dataclass(frozen=True)
class SoundPut:
    """A put that can be written."""

    id: str
    path: str
    key: str
    scope: Scope
    value: dict[str, Any]
    texts: tuple[str, ...]
    ttl: float | None


def check_puts(puts: Sequence[Put], tenant: str, rule: ScopeOf) -> tuple[list[SoundPut], list[str]]:
    """What is to be written, and ids of what is to be deleted; of several puts of one item the last counts.

    Raises:
        InvalidInputError: one of them cannot be written; then none is.
        ScopeError: its scope is malformed.
    """
    last: dict[str, SoundPut | None] = {}
    for put in puts:
        namespace = check_namespace(put.namespace)
        check_key(put.key)
        found = item_id(tenant, namespace, put.key)
        last[found] = None if put.value is None else _check_put(put, found, namespace, tenant, rule)
    return [put for put in last.values() if put is not None], [id for id, put in last.items() if put is None]


def check_key(key: str) -> str:
    """The key, if it can be kept.

    Raises:
        InvalidInputError: it is no string, or holds a NUL or a lone surrogate.
    """
    if not isinstance(key, str) or "\0" in key or any("\ud800" <= char <= "\udfff" for char in key):
        raise InvalidInputError(f"the key {key!r} cannot be kept; want a string without NUL and lone surrogates.")
    return key


def check_value(key: str, value: object) -> dict[str, Any]:
    """A JSON copy of an item's value; tuples become lists, as they would on reading.

    Raises:
        InvalidInputError: not a mapping, not JSON (NaN included), or not valid Unicode.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"the value of {key!r} is a {type(value).__name__}; want a dict, or None.")
    try:
        encoded = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        encoded.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"the value of {key!r} cannot be written as JSON: {error}. Use strings, numbers, booleans, None, lists and "
            "dicts."
        ) from error
    return json.loads(encoded)


def write(changes: Changes, puts: Sequence[SoundPut], gone: Sequence[str], at: datetime) -> None:
    """Write and delete in one go.

    New facts are linked before old links are cut, so that a text that moves from one item to another keeps its fact.
    """
    tx = changes.tx
    facts = _save_texts(changes, puts)
    ids = [put.id for put in puts]
    rows = {row.id: row for some in batches(ids) for row in tx.scalars(select(ItemRow).where(ItemRow.id.in_(some)))}
    numbers = take_numbers(tx, len(puts))
    for put in puts:
        row = rows.get(put.id)
        number = next(numbers)
        if row is None or (row.expires_at is not None and row.expires_at <= at):
            row = row or ItemRow(id=put.id, path=put.path, key=put.key)
            row.seq, row.created_at = number, at
            tx.add(row)
        for name, value in scope_columns(put.scope).items():
            setattr(row, name, value)
        row.value, row.updated_at, row.ttl, row.expires_at = put.value, at, put.ttl, expiry(put.ttl, at)
    tx.flush()
    loose = _relink(tx, facts)
    loose |= erase_items(tx, gone)
    changes.delete_many(orphans(tx, loose))


def expiry(ttl: float | None, at: datetime) -> datetime | None:
    """When an item used at ``at`` expires; None: never."""
    return None if ttl is None else at + timedelta(minutes=ttl)


def _save_texts(changes: Changes, puts: Sequence[SoundPut]) -> dict[str, dict[str, bool]]:
    """Save the texts as facts; returns by item its facts, each with whether it is made for items."""
    wanted: dict[Scope, list[tuple[SoundPut, str]]] = {}
    for put in puts:
        for text in put.texts:
            wanted.setdefault(put.scope, []).append((put, text))
    facts: dict[str, dict[str, bool]] = {put.id: {} for put in puts}
    for scope, pairs in wanted.items():
        result = changes.add([NewFact(text) for _, text in pairs], scope)
        for error in result.errors:
            _log.warning(
                "a text of the item %r is kept but cannot be searched for: %s", pairs[error.index][0].key, error.reason
            )
        refused = {error.index for error in result.errors}
        saved = [put for index, (put, _) in enumerate(pairs) if index not in refused]
        made = set(result.created) | _made(changes.tx, [fact.id for fact in result.facts])
        for put, fact in zip(saved, result.facts, strict=True):
            facts[put.id][fact.id] = fact.id in made
    return facts


def _made(tx: Session, fact_ids: Sequence[str]) -> set[str]:
    """Those that were made for an item which has them still."""
    found: set[str] = set()
    for some in batches(fact_ids):
        found.update(tx.scalars(select(ItemFactRow.fact_id).where(ItemFactRow.fact_id.in_(some), ItemFactRow.made)))
    return found


def _relink(tx: Session, facts: Mapping[str, Mapping[str, bool]]) -> set[str]:
    """Make the links of these items what ``facts`` says; returns the facts made for items that were let go."""
    old: dict[tuple[str, str], bool] = {}
    for some in batches(facts):
        links = select(ItemFactRow.item_id, ItemFactRow.fact_id, ItemFactRow.made).where(ItemFactRow.item_id.in_(some))
        old.update(((item, fact), made) for item, fact, made in tx.execute(links))
    new = {(item, fact): made for item, linked in facts.items() for fact, made in linked.items()}
    tx.add_all(
        ItemFactRow(item_id=item, fact_id=fact, made=made)
        for (item, fact), made in new.items()
        if (item, fact) not in old
    )
    tx.flush()
    loose: set[str] = set()
    for (item, fact), made in old.items():
        if (item, fact) not in new:
            cut = delete(ItemFactRow).where(ItemFactRow.item_id == item, ItemFactRow.fact_id == fact)
            tx.execute(cut, execution_options=_UNSYNCED)
            loose |= {fact} if made else set()
    return loose


def _check_put(put: Put, found: str, namespace: Namespace, tenant: str, rule: ScopeOf) -> SoundPut:
    path = checked_path(namespace)
    ttl = put.ttl
    if ttl is not None and not (
        isinstance(ttl, int | float) and not isinstance(ttl, bool) and math.isfinite(ttl) and 0 < ttl <= MAX_TTL_MINUTES
    ):
        raise InvalidInputError(f"ttl is {ttl!r}; want minutes, more than 0 and at most 100 years, or None for ever.")
    texts = (strip_handles(text) for text in put.texts)
    return SoundPut(
        id=found,
        path=path,
        key=put.key,
        scope=scope_of(namespace, tenant, rule),
        value=check_value(put.key, put.value),
        texts=tuple(text for text in texts if not is_blank(text)),
        ttl=None if ttl is None else float(ttl),
    )
