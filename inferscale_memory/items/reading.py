"""Reading items: by name, by prefix and filter, by what they are about; expired ones are not there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from inferscale_memory.facts.rows import batches
from inferscale_memory.items.filters import matches
from inferscale_memory.items.models import Item, Namespace, Query
from inferscale_memory.items.namespaces import Pattern, fixed_prefix, from_path, path_range, to_path
from inferscale_memory.items.tables import ItemFactRow, ItemRow
from inferscale_memory.scope import Scope, digest

T = TypeVar("T")

_MAX_ROWS = 2**63 - 1
"""The largest number that a database takes."""


class Ranked(NamedTuple):
    """An item's id with its best fact's id and score, where it was ranked."""

    item: str
    score: float | None = None
    fact: str | None = None


def item_id(tenant: str, namespace: Namespace, key: str) -> str:
    """The id in the database: the same each time."""
    return digest("item", tenant, to_path(namespace), key)[:32]


def alive(at: datetime) -> ColumnElement[bool]:
    """Items that have not expired."""
    return or_(ItemRow.expires_at.is_(None), ItemRow.expires_at > at)


def below(tenant: str, prefix: Namespace) -> ColumnElement[bool]:
    """Items of the tenant whose namespace begins with ``prefix``."""
    span = path_range(prefix)
    mine = ItemRow.tenant == tenant
    return mine if span is None else and_(mine, ItemRow.path >= span[0], ItemRow.path < span[1])


def to_item(row: ItemRow) -> Item:
    """The row as a value."""
    return Item(
        namespace=from_path(row.path),
        key=row.key,
        value=row.value,
        created_at=row.created_at,
        updated_at=row.updated_at,
        ttl=row.ttl,
        expires_at=row.expires_at,
    )


def read_items(tx: Session, ids: Iterable[str], at: datetime) -> dict[str, Item]:
    """Living items by id; the others are left out."""
    found: dict[str, Item] = {}
    for some in batches(ids):
        rows = tx.scalars(select(ItemRow).where(ItemRow.id.in_(some), alive(at)))
        found.update((row.id, to_item(row)) for row in rows)
    return found


def read_candidates(tx: Session, tenant: str, query: Query, at: datetime) -> list[str]:
    """Ids of the living items below the prefix that the filter lets through, namespaces by age, in them items by age.

    Without a question only those of the page are read.
    """
    # A namespace is as old as its oldest item.
    age = func.min(ItemRow.seq).over(partition_by=ItemRow.path)
    where = and_(below(tenant, query.prefix), alive(at))
    if query.filter:
        rows = tx.execute(select(ItemRow.id, ItemRow.value).where(where).order_by(age, ItemRow.seq))
        ids = [item for item, value in rows if matches(value, query.filter)]
    else:
        plain = select(ItemRow.id).where(where).order_by(age, ItemRow.seq)
        ids = list(tx.scalars(_page_of(plain, query)))
        if not asks(query) and min(query.limit, query.offset) >= 0:
            return ids
    return ids if asks(query) else page(ids, query)


def asks(query: Query) -> bool:
    """Whether there is a question to rank by."""
    return bool(query.question and query.question.strip())


def page(ranked: Sequence[T], query: Query) -> list[T]:
    """The part asked for; negative bounds count from the end, as everywhere in Python."""
    return list(ranked[query.offset : query.offset + query.limit])


def _page_of(select_ids: Select[Any], query: Query) -> Select[Any]:
    if asks(query) or min(query.limit, query.offset) < 0:
        return select_ids
    return select_ids.limit(min(query.limit, _MAX_ROWS)).offset(min(query.offset, _MAX_ROWS))


def facts_of(tx: Session, ids: Collection[str]) -> dict[str, list[str]]:
    """Fact ids by item id; items without one are left out."""
    found: dict[str, list[str]] = {}
    for some in batches(ids):
        links = tx.execute(select(ItemFactRow.item_id, ItemFactRow.fact_id).where(ItemFactRow.item_id.in_(some)))
        for item, fact in links:
            found.setdefault(item, []).append(fact)
    return found


def rank(candidates: Sequence[str], facts: Mapping[str, Sequence[str]], scores: Mapping[str, float]) -> list[Ranked]:
    """Items by their best fact, best first, ties by age; those without a score follow, by age."""
    scored: list[tuple[float, Ranked]] = []
    others: list[Ranked] = []
    for item in candidates:
        known = [(scores[fact], fact) for fact in facts.get(item, ()) if fact in scores]
        if known:
            score, fact = max(known)
            scored.append((score, Ranked(item, score, fact)))
        else:
            others.append(Ranked(item))
    scored.sort(key=lambda hit: -hit[0])
    return [*(hit for _, hit in scored), *others]


def read_namespaces(tx: Session, tenant: str, patterns: Sequence[Pattern], at: datetime) -> list[Namespace]:
    """Namespaces with a living item; those that the patterns cannot name may be missing."""
    where = and_(below(tenant, fixed_prefix(patterns)), alive(at))
    return [from_path(path) for path in tx.scalars(select(ItemRow.path).where(where).distinct())]


def read_scopes(tx: Session, tenant: str, prefix: Namespace, at: datetime) -> list[Scope]:
    """Whose the living items below the prefix are, each once."""
    columns = (ItemRow.user_id, ItemRow.agent_id, ItemRow.session_id)
    rows = tx.execute(select(*columns).where(below(tenant, prefix), alive(at)).distinct())
    return [Scope(tenant, *row) for row in rows]


def expired(tenant: str, at: datetime) -> Select[Any]:
    """Ids of the tenant's items whose time is over, longest first."""
    return (
        select(ItemRow.id)
        .where(ItemRow.tenant == tenant, ItemRow.expires_at.is_not(None), ItemRow.expires_at <= at)
        .order_by(ItemRow.expires_at)
    )
