"""Time to live: counted from the last use, over for every reader at once, erased with the facts."""

from __future__ import annotations

import logging
import math

import pytest

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.items import Put, Query
from inferscale_memory.items.store import ItemStore
from inferscale_memory.items.tables import ItemRow

ALICE = ("alice",)


def put(items, key="k", text="I like tea", ttl=10.0, namespace=ALICE):
    items.put([Put(namespace, key, {"text": text}, (text,), ttl)])


def facts(memory):
    return [fact.text for fact in memory.list(user_id="alice").facts]


def rows(memory):
    with memory.store.transaction() as tx:
        return tx.query(ItemRow).count()


def test_an_expired_item_is_seen_by_no_read(items, clock):
    put(items)
    put(items, "forever", "I live in Graz", ttl=None)
    clock.forward(9.9)
    assert items.get([(ALICE, "k")])[0].expires_at == clock.now.replace(minute=18, second=9)
    clock.forward(0.1)
    assert items.get([(ALICE, "k")]) == [None]
    for question in (None, "tea"):
        assert [hit.item.key for hit in items.search(Query(ALICE, question))] == ["forever"]
    items.put([Put(ALICE, "forever", None)])
    assert items.namespaces() == []


def test_using_an_item_starts_its_time_anew(items, clock):
    put(items)
    for _ in range(3):
        clock.forward(9)
        items.touch(items.get([(ALICE, "k")]))
    clock.forward(10)
    assert items.get([(ALICE, "k")]) == [None]


def test_using_an_item_that_was_overwritten_meanwhile_does_not_shorten_its_time(items, clock):
    put(items, ttl=1.0)
    used = items.get([(ALICE, "k")])
    put(items, ttl=None)
    items.touch(used)
    clock.forward(5)
    assert items.get([(ALICE, "k")])[0].expires_at is None


def test_a_sweep_erases_expired_items_and_their_facts(items, memory, clock):
    put(items)
    put(items, "shared", ttl=None)
    put(items, "gone", "I live in Graz")
    clock.forward(10)
    assert items.sweep() == 2
    assert items.sweep() == 0
    assert facts(memory) == ["I like tea"]
    assert rows(memory) == 1


def test_a_sweep_erases_more_than_one_batch(items, memory, clock, monkeypatch):
    monkeypatch.setattr("inferscale_memory.items.store.SWEEP_BATCH", 2)
    items.put([Put(ALICE, f"{n}", {}, (f"fact {n}",), 1.0) for n in range(5)])
    clock.forward(1)
    assert items.sweep() == 5
    assert facts(memory) == []


def test_opening_a_store_sweeps(items, memory, clock):
    put(items)
    clock.forward(10)
    assert facts(memory) == ["I like tea"]
    ItemStore(memory, clock=clock)
    assert facts(memory) == []


def test_using_a_store_sweeps_at_most_once_a_minute(items, memory, clock):
    put(items, ttl=0.1)
    clock.forward(0.5)
    items.get([(ALICE, "k")])
    assert rows(memory) == 1
    clock.forward(0.5)
    items.get([(ALICE, "other")])
    assert (rows(memory), facts(memory)) == (0, [])


def test_a_sweep_that_fails_does_not_keep_a_read_from_its_work(items, clock, monkeypatch, caplog):
    put(items)
    put(items, "forever", ttl=None)
    clock.forward(10)

    def full():
        raise StoreError("the disk is full")

    monkeypatch.setattr(items, "sweep", full)
    with caplog.at_level(logging.WARNING):
        assert items.get([(ALICE, "forever"), (ALICE, "k")])[1] is None
    assert "not yet erased: the disk is full" in caplog.text


def test_writing_over_an_expired_item_makes_a_new_one(items, memory, clock):
    put(items, ttl=0.1)
    put(items, "second", ttl=None)
    clock.forward(0.2)
    put(items, text="I like coffee", ttl=None)
    assert [hit.item.key for hit in items.search(Query(ALICE))] == ["second", "k"]
    assert items.get([(ALICE, "k")])[0].created_at == clock.now


def test_a_sweep_leaves_other_tenants_alone(items, memory, clock):
    other = ItemStore(memory, tenant_id="acme", clock=clock)
    put(other)
    clock.forward(10)
    assert items.sweep() == 0
    assert rows(memory) == 1
    assert other.sweep() == 1


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, True, "5"])
def test_a_time_to_live_that_is_no_time_is_refused(items, ttl):
    with pytest.raises(InvalidInputError, match=r"ttl is .*; want minutes"):
        put(items, ttl=ttl)
