"""Removing items, and finding the facts that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from inferscale_memory.facts.rows import batches, within
from inferscale_memory.facts.session import scrub_after_commit
from inferscale_memory.facts.tables import SourceRow
from inferscale_memory.items.tables import ItemFactRow, ItemRow
from inferscale_memory.scope import Scope

_UNSYNCED = {"synchronize_session": False}


def erase_items(tx: Session, item_ids: Collection[str]) -> set[str]:
    """Remove items with every trace of their values; returns the facts made for them (see ``orphans``)."""
    if not item_ids:
        return set()
    made: set[str] = set()
    for some in batches(item_ids):
        links = select(ItemFactRow.fact_id).where(ItemFactRow.item_id.in_(some), ItemFactRow.made)
        made.update(tx.scalars(links))
        tx.execute(delete(ItemFactRow).where(ItemFactRow.item_id.in_(some)), execution_options=_UNSYNCED)
        tx.execute(delete(ItemRow).where(ItemRow.id.in_(some)), execution_options=_UNSYNCED)
    tx.expire_all()
    scrub_after_commit(tx)
    return made


def erase_items_of(tx: Session, fact_ids: Collection[str]) -> set[str]:
    """Remove the items that hold the text of these facts, which are about to be deleted.

    Call it while the facts are still there. Returns the items' other facts that nobody needs any more.
    """
    holders: set[str] = set()
    for some in batches(fact_ids):
        holders.update(tx.scalars(select(ItemFactRow.item_id).where(ItemFactRow.fact_id.in_(some))))
    return orphans(tx, erase_items(tx, holders) - set(fact_ids))


def erase_items_within(tx: Session, scope: Scope) -> int:
    """Remove every item whose scope names all that ``scope`` names, and no fact; returns how many."""
    ids = tx.scalars(select(ItemRow.id).where(within(ItemRow, scope))).all()
    erase_items(tx, ids)
    return len(ids)


def orphans(tx: Session, made: Iterable[str]) -> set[str]:
    """Those of the facts made for items that no item has any more, and that were not said in a conversation since."""
    left: set[str] = set()
    for some in batches(made):
        linked = set(tx.scalars(select(ItemFactRow.fact_id).where(ItemFactRow.fact_id.in_(some))))
        said = set(tx.scalars(select(SourceRow.fact_id).where(SourceRow.fact_id.in_(some))))
        left.update(set(some) - linked - said)
    return left
