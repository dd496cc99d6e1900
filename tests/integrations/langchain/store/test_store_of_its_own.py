"""What InMemoryStore does not do: outlive a process, expire, forget for good, and be a user's memory."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp, SearchOp

from inferscale_memory.errors import InvalidInputError, StoreError
from langchain_inferscale import InferScaleStore
from tests.asking import eventually

ALICE = ("users", "alice")
SECOND = """
import sys
from langchain_inferscale import InferScaleStore
from tests.unit.memory.toys import open_memory
with open_memory() as memory:
    store = InferScaleStore(memory, fields=["text"])
    print(ascii([(item.namespace, item.key, item.value) for item in store.search((), query="dog", limit=1)]))
    store.put(("users", "bob"), "new", {"text": "from the second"})
    store.delete(("users", "alice"), "tea")
"""


class Clock:
    """A time that the test moves."""

    def __init__(self):
        self.now = datetime.now(UTC)

    def __call__(self):
        return self.now

    def forward(self, minutes):
        self.now += timedelta(minutes=minutes)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def expiring(memory, clock):
    """Ten minutes for every item, on the test's clock."""
    store = InferScaleStore(memory, fields=["text"], ttl={"default_ttl": 10})
    store.items._clock = clock
    return store


def test_items_are_there_after_a_restart_as_they_were(memory, opened):
    store = InferScaleStore(memory, fields=["text"])
    store.put(ALICE, "dog", {"text": "the dog is called Rex"})
    store.put(ALICE, "ключ 🗝", {"text": "日本語 und 👩‍👩‍👧"}, index=False)
    before = store.search(ALICE), store.list_namespaces()
    memory.close()
    again = InferScaleStore(opened(), fields=["text"])
    assert (again.search(ALICE), again.list_namespaces()) == before
    assert again.search(ALICE, query="dog")[0].key == "dog"


def test_another_process_sees_and_changes_the_same_items(memory, started):
    store = InferScaleStore(memory, fields=["text"])
    store.put(ALICE, "dog", {"text": "the dog is called Rex 🐕"})
    store.put(ALICE, "tea", {"text": "green tea"})
    second = started(SECOND)
    printed, _ = second.communicate(timeout=120)
    assert second.returncode == 0
    assert printed == ascii([(ALICE, "dog", {"text": "the dog is called Rex 🐕"})]) + "\n"
    assert store.search((), query="from the second", limit=1)[0].namespace == ("users", "bob")
    assert store.get(ALICE, "tea") is None
    assert [hit.key for hit in store.search((), query="tea")] != ["tea"]


def test_an_overwritten_item_keeps_the_time_it_was_made(ours):
    ours.put(ALICE, "k", {"v": 1})
    made = ours.get(ALICE, "k").created_at
    ours.put(ALICE, "k", {"v": 2})
    assert ours.get(ALICE, "k").created_at == made


def test_changing_what_was_read_changes_nothing_in_the_store(ours):
    value = {"list": [1]}
    ours.put(ALICE, "k", value)
    value["list"].append(2)
    ours.get(ALICE, "k").value["list"].append(3)
    assert ours.get(ALICE, "k").value == {"list": [1]}


def test_a_batch_with_one_bad_put_writes_none(ours):
    with pytest.raises(InvalidInputError, match="'bad' cannot be written as JSON"):
        ours.batch([PutOp(ALICE, "good", {"v": 1}), PutOp(ALICE, "bad", {"v": object()})])
    assert ours.search(()) == []


def test_labels_are_checked_in_a_batch_too(ours):
    for op in (PutOp(("a.b",), "k", {}), GetOp(("a.b",), "k"), SearchOp(("a.b",))):
        with pytest.raises(InvalidNamespaceError, match="periods"):
            ours.batch([op])


def test_the_memory_of_the_namespaces_user_finds_the_items_and_no_longer_when_they_are_deleted(memory, home):
    store = InferScaleStore(memory, fields=["text"])
    store.put(("alice",), "dog", {"text": "the zyzzyva is called Rex"})
    store.put(("bob",), "dog", {"text": "a dog called Fido"})
    assert [hit.fact.text for hit in memory.search("zyzzyva", user_id="alice")] == ["the zyzzyva is called Rex"]
    handle = store.recall(("alice",), "zyzzyva")
    store.delete(("alice",), "dog")
    assert memory.search("zyzzyva", user_id="alice") == []
    assert memory.explain(handle).deleted == 1
    assert not any(b"zyzzyva" in path.read_bytes() for path in (home / "memory").glob("facts.db*"))
    assert [hit.key for hit in store.search((), query="dog")] == ["dog"]


async def test_a_handle_can_be_awaited(ours):
    await ours.aput(("alice",), "dog", {"text": "my dog is Rex"}, index=["text"])
    assert [hit.fact.text for hit in (await ours.arecall(("alice",), "dog")).facts] == ["my dog is Rex"]


def test_threads_and_tasks_write_at_once_and_lose_nothing(ours):
    async def tasks():
        await asyncio.gather(*(ours.aput(ALICE, f"task {n}", {"text": f"task {n}"}) for n in range(8)))

    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(ours.put, ALICE, f"thread {n}", {"text": f"thread {n}"}) for n in range(8)]
        asyncio.run(tasks())
        for thread in threads:
            thread.result()
    wanted = {f"{kind} {n}" for kind in ("task", "thread") for n in range(8)}
    assert {item.key for item in ours.search(ALICE, limit=100)} == wanted


def test_an_item_expires_unless_it_is_read(expiring, memory, clock):
    for key in ("read", "found", "peeked", "forever"):
        expiring.put(ALICE, key, {"text": f"the {key} one"}, **({"ttl": None} if key == "forever" else {}))
    for _ in range(2):
        clock.forward(6)
        assert expiring.get(ALICE, "read") is not None
        assert expiring.search(ALICE, query="found", limit=1)[0].key == "found"
        expiring.get(ALICE, "peeked", refresh_ttl=False)
    assert [item.key for item in expiring.search(ALICE)] == ["read", "found", "forever"]
    expiring.sweep_ttl()
    assert "the peeked one" not in [fact.text for fact in memory.list(user_id="users/alice").facts]


def test_reading_does_not_lengthen_a_life_where_the_config_says_so(memory, clock):
    store = InferScaleStore(memory, ttl={"default_ttl": 10, "refresh_on_read": False})
    store.items._clock = clock
    store.put(ALICE, "k", {"v": 1})
    clock.forward(6)
    assert store.get(ALICE, "k") is not None
    clock.forward(6)
    assert store.get(ALICE, "k") is None


def test_an_item_may_live_shorter_than_the_others(expiring, clock):
    expiring.put(ALICE, "k", {"text": "x"}, ttl=1)
    clock.forward(1)
    assert expiring.get(ALICE, "k") is None


def test_a_sweeper_erases_what_nobody_asks_for(expiring, memory, clock):
    expiring.put(ALICE, "k", {"text": "gone soon"})
    clock.forward(10)
    running = expiring.start_ttl_sweeper(0.0005)
    assert expiring.start_ttl_sweeper(0.0005) is running
    eventually(lambda: memory.list(user_id="users/alice").facts == ())
    assert expiring.stop_ttl_sweeper(timeout=30)
    assert running.done()


def test_a_sweeper_survives_a_failure_and_ends_with_its_memory(expiring, memory, monkeypatch):
    calls = []

    def fail():
        calls.append(1)
        raise StoreError("the disk is full")

    monkeypatch.setattr(expiring.items, "sweep", fail)
    running = expiring.start_ttl_sweeper(0.0005)
    eventually(lambda: len(calls) > 1)
    memory.close()
    running.result(timeout=30)


def test_a_sweeper_ends_when_it_is_cancelled_or_its_store_is_gone(memory):
    store = InferScaleStore(memory, ttl={"sweep_interval_minutes": 0.0005})
    first = store.start_ttl_sweeper()
    assert first.cancel()
    second = store.start_ttl_sweeper()
    assert second is not first
    del store
    gc.collect()
    second.result(timeout=30)


def test_without_a_config_there_is_no_sweeper(ours):
    assert ours.start_ttl_sweeper().done()
    assert ours.stop_ttl_sweeper()


@pytest.mark.parametrize("minutes", [-1, float("nan"), "5"])
def test_a_sweep_interval_that_is_none_is_refused(expiring, minutes):
    with pytest.raises(InvalidInputError, match="the sweep interval is"):
        expiring.start_ttl_sweeper(minutes)


@pytest.mark.parametrize("options", [{"fields": "text"}, {"fields": [1]}, {"ttl": 5}])
def test_a_store_that_cannot_be_is_refused(memory, options):
    with pytest.raises(InvalidInputError, match=r"index paths are|want langgraph's TTLConfig"):
        InferScaleStore(memory, **options)


def test_a_store_that_indexes_nothing_by_default_indexes_what_a_put_names(memory):
    store = InferScaleStore(memory, fields=[])
    store.put(("alice",), "quiet", {"text": "tea"})
    store.put(("alice",), "loud", {"text": "tea"}, index=["text"])
    assert len(memory.list(user_id="alice").facts) == 1
    assert [item.key for item in store.search(("alice",), query="tea")] == ["loud", "quiet"]


def test_a_closed_memory_is_said_to_be_closed(memory, ours):
    memory.close()
    for use in (lambda: ours.get(ALICE, "k"), lambda: ours.put(ALICE, "k", {}), lambda: ours.search(ALICE)):
        with pytest.raises(StoreError, match="closed"):
            use()
