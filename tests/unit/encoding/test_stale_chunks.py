"""Who saw whom stays right while facts are encoded again: in the ledger, and when something is deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plumbing import ALICE, BOB, MODEL, World
from renewing import WAIT, hold, in_background, nearest_world, settled

from inferscale_memory.encoding.ledger import ChunkRecord
from inferscale_memory.encoding.policies import ANYTHING
from inferscale_memory.encoding.purge import purge
from inferscale_memory.scope import digest


@pytest.fixture
def world(opened: Callable[..., World]) -> World:
    return nearest_world(opened)


def test_a_fact_seen_by_the_new_chunk_only_is_deleted_while_that_is_encoded(world):
    near, *_ = settled(world, "0", "20", "40")
    old = world.ready([near])[near.id]
    written, released = hold(world, "0")
    [new] = world.save("5")
    flush = in_background(world)
    assert written.wait(WAIT)
    world.delete(new)
    released.set()
    flush.join(WAIT)
    world.encoder.flush(WAIT)
    assert world.seen_by(near) == ["40", "20"]
    assert world.ready([near]) == {near.id: old}
    purge(world.ledger, world.chunks)
    assert set(world.chunks.keys()) == set(world.ready(world.store.list(ALICE).facts).values())


def test_a_fact_seen_by_the_old_chunk_only_is_deleted_while_the_new_one_is_encoded(world):
    near, _, gone = settled(world, "0", "20", "40")
    old = world.ready([near])[near.id]
    written, released = hold(world, "0")
    world.save("5")
    flush = in_background(world)
    assert written.wait(WAIT)
    world.delete(gone)
    assert world.ready([near]) == {}, "the old chunk carries traces of what was deleted"
    released.set()
    flush.join(WAIT)
    world.encoder.flush(WAIT)
    assert world.seen_by(near) == ["20", "5"]
    purge(world.ledger, world.chunks)
    assert not world.chunks.exists(old)


@pytest.mark.parametrize("change", ["delete", "update"])
def test_a_fact_that_both_chunks_saw_takes_both_along(world, change):
    near, seen, *_ = settled(world, "0", "20", "40")
    old = world.ready([near])[near.id]
    written, released = hold(world, "0")
    world.save("5")
    flush = in_background(world)
    assert written.wait(WAIT)
    forgotten = world.delete(seen) if change == "delete" else world.update(seen, "21 changed")
    assert len([key for key in forgotten.keys if key in (old, *world.chunks.keys())]) >= 2
    assert near.id in forgotten.dependants
    assert world.ready([near]) == {}
    released.set()
    flush.join(WAIT)
    world.encoder.flush(WAIT)
    assert world.seen_by(near) == (["40", "5"] if change == "delete" else ["21 changed", "5"])
    purge(world.ledger, world.chunks)
    assert set(world.chunks.keys()) == set(world.ready(world.store.list(ALICE).facts).values())


def test_a_fact_deleted_while_it_is_encoded_again_leaves_neither_chunk(world):
    near, *_ = settled(world, "0", "20", "40")
    written, released = hold(world, "0")
    world.save("5")
    flush = in_background(world)
    assert written.wait(WAIT)
    forgotten = world.delete(near)
    assert len([key for key in forgotten.keys if not world.ledger.ready_keys(MODEL, "nearest:2", [key])]) >= 2
    released.set()
    flush.join(WAIT)
    world.encoder.flush(WAIT)
    purge(world.ledger, world.chunks)
    assert world.ready([near]) == {}
    assert set(world.chunks.keys()) == set(world.ready(world.store.list(ALICE).facts).values())


def test_what_was_deleted_is_seen_by_nobody_and_those_who_saw_it_get_their_next_nearest(world):
    near, gone, *_ = settled(world, "0", "10", "20", "30")
    assert "10" in world.seen_by(near)
    world.delete(gone)
    assert near.id not in world.ready([near])
    world.encoder.flush(WAIT)
    assert world.seen_by(near) == ["30", "20"]


def test_once_a_line_that_did_not_fit_is_deleted_another_takes_its_place(opened):
    world = opened("nearest:2:12t")
    fact, _, gone, _ = settled(world, "0", "10", "20 much too long for it", "30")
    assert world.seen_by(fact) == ["10"]
    kept = world.ready([fact])
    world.delete(gone)
    assert world.ready([fact]) == kept, "it saw nothing of what was deleted"
    world.encoder.flush(WAIT)
    assert world.seen_by(fact) == ["30", "10"]


def record(fact, *context, key="key", **options):
    seen = tuple(context)
    return ChunkRecord(
        digest(key), fact.id, fact.revision, fact.scope.principal, MODEL, "nearest:2", 3, seen, **options
    )  # fmt: skip


def test_a_chunk_begun_without_knowing_of_an_announced_fact_is_born_stale(world):
    fact, new = world.save("0", "5")
    until = world.store.last_change()
    reached = lambda ids, reach: set(reach)  # noqa: E731
    world.ledger.announce(MODEL, "nearest:2", [new.id], {new.id: 1}, reached)
    assert world.ledger.begin(record(fact, reach=ANYTHING, known_until=until - 1))
    assert world.ledger.begin(record(new, key="other", reach=ANYTHING, known_until=until))
    for key in ("key", "other"):
        world.ledger.ready(digest(key))
    assert world.ledger.stale(MODEL, "nearest:2", 9) == [fact.id]


def test_a_chunk_begun_while_its_neighbours_are_announced_is_not_missed(world):
    fact, new = world.save("0", "5")

    world.ledger.begin(record(new, key="other", reach=None))
    first = record(fact, key="first", reach=0.1)
    world.ledger.begin(first)

    def reached(ids, reach):
        if reach.get(fact.id) == 0.1:
            world.ledger.discard(first.key)
            world.ledger.begin(record(fact, reach=0.5))
            return set()
        return set(reach)

    world.ledger.announce(MODEL, "nearest:2", [new.id], {new.id: 1}, reached)
    world.ledger.ready(digest("key"))
    assert world.ledger.stale(MODEL, "nearest:2", 9) == [fact.id]


def test_an_updated_fact_is_announced_again(world):
    [fact] = world.save("0")
    world.ledger.announce(MODEL, "nearest:2", [fact.id], {fact.id: 1}, lambda ids, reach: set())
    assert world.ledger.unannounced(MODEL, "nearest:2", 9) == []
    world.update(fact, "5")
    assert world.ledger.unannounced(MODEL, "nearest:2", 9) == [fact.id]
    assert world.ledger.count_unannounced(MODEL, "nearest:2", BOB) == 0


def test_a_fact_that_gets_its_vector_late_makes_its_own_chunk_stale(world):
    fact, other = world.save("0", "5")
    none = lambda ids, reach: set()  # noqa: E731
    world.ledger.announce(MODEL, "nearest:2", [fact.id, other.id], {other.id: 1}, none)
    assert world.ledger.without_vector(MODEL, "nearest:2") == [fact.id]
    world.ledger.begin(record(fact, without_vector=True))
    world.ledger.ready(digest("key"))
    assert world.ledger.count_stale(MODEL, "nearest:2") == 0
    assert world.ledger.announce(MODEL, "nearest:2", [fact.id], {fact.id: 1}, none) == 1
    assert world.ledger.stale(MODEL, "nearest:2", 9) == [fact.id]
    assert world.ledger.without_vector(MODEL, "nearest:2") == []
