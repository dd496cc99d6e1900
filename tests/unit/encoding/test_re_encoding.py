"""Facts that get new neighbours are encoded again in the background, and served from the old chunk until then."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable

import pytest
from plumbing import ALICE, BOB, MODEL, World
from renewing import WAIT, hold, in_background, mark_stale, nearest_world, settled

from inferscale_memory.encoding.pacing import Pace
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import FlushTimeoutError
from inferscale_memory.scope import Scope


@pytest.fixture
def world(opened: Callable[..., World]) -> World:
    return nearest_world(opened)


def test_facts_saved_together_see_each_other_and_are_encoded_once(world):
    facts = world.save("0", "10", "40", "90")
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert [world.seen_by(fact) for fact in facts] == [["40", "10"], ["40", "0"], ["0", "10"], ["10", "40"]]
    assert sorted(world.engine.texts) == ["0", "10", "40", "90"]


def test_a_bulk_of_facts_is_embedded_in_batches_before_any_is_encoded(world):
    embedded_before: list[int] = []
    world.engine.before = lambda text: embedded_before.append(sum(map(len, world.embedder.calls))) and None
    settled(world, *(str(n) for n in range(100)))
    assert set(embedded_before) == {100}
    assert max(map(len, world.embedder.calls)) > 50


def test_a_new_fact_makes_exactly_those_be_encoded_again_that_it_is_nearer_to(world):
    facts = settled(world, "0", "10", "20", "170", "180")
    before = world.ready(facts)
    [new] = world.save("5")
    world.encoder.flush(WAIT)
    assert sorted(world.engine.texts) == ["0", "10", "20", "5"]
    after = world.ready(facts)
    assert [after[fact.id] != before[fact.id] for fact in facts] == [True, True, True, False, False]
    assert [world.seen_by(fact) for fact in facts[:3]] == [["10", "5"], ["0", "5"], ["5", "10"]]
    assert world.seen_by(new) == ["10", "0"]


def test_policies_that_go_by_what_was_saved_before_encode_nothing_again_and_embed_nothing(opened):
    world = opened("preceding:2:fact")
    settled(world, "0", "10")
    settled(world, "5")
    world.save("6")
    world.encoder.flush(WAIT)
    assert world.engine.texts == ["6"]
    assert world.embedder.calls == []


def test_a_stale_fact_is_served_from_its_old_chunk_until_the_new_one_is_ready(world):
    near, *_ = settled(world, "0", "20", "40")
    old = world.ready([near])[near.id]
    written, released = hold(world, "0")
    world.save("5")
    flush = in_background(world)
    assert written.wait(WAIT)
    assert world.ready([near]) == {near.id: old}
    assert world.chunks.exists(old)
    assert world.ledger.unfinished(MODEL, "nearest:2", ALICE) <= 1
    released.set()
    flush.join(WAIT)
    new = world.ready([near])[near.id]
    assert new != old
    purge(world.ledger, world.chunks)
    assert not world.chunks.exists(old)
    assert set(world.chunks.keys()) == set(world.ready(world.store.list(ALICE).facts).values())


def test_no_native_block_made_from_the_old_chunk_is_hit_once_it_is_replaced(world):
    settled(world, "0", "20", "40")
    settled(world, "100", "120", "140", scope=BOB)
    before, of_bob = world.store.epoch(ALICE), world.store.epoch(BOB)
    settled(world, "5")
    assert world.store.epoch(ALICE) > before
    assert world.store.epoch(BOB) == of_bob


def test_a_new_fact_of_one_user_makes_no_chunk_of_another_stale(world):
    settled(world, "0", "20", "40")
    settled(world, "5", scope=BOB)
    assert world.ledger.count_stale(MODEL, "nearest:2") == 0
    world.encoder.flush(WAIT)
    assert world.engine.texts == []


@pytest.mark.parametrize("policy", ["nearest:2", "nearest:3:30t", "mixed:2:1"])
def test_after_a_flush_contexts_are_those_of_the_whole_memory_whatever_came_when(opened, policy):
    world = opened(policy)
    world.encoder.start()
    chance = random.Random(0)
    for _ in range(2):
        angles = chance.sample(range(180), 9)
        at_once, bit_by_bit = (Scope.of(user_id=uuid.uuid4().hex) for _ in range(2))
        world.save(*map(str, angles), scope=at_once)
        for start in range(0, 9, 2):
            world.save(*map(str, angles[start : start + 2]), scope=bit_by_bit)
            if chance.random() < 0.5:
                world.encoder.flush(WAIT)
        for scope in (at_once, bit_by_bit):
            gone, changed = world.store.list(scope).facts[3], world.store.list(scope).facts[5]
            world.delete(gone)
            world.update(changed, "91 changed")
        world.encoder.flush(WAIT)
        found = [
            {fact.text: world.seen_by(fact) for fact in world.store.list(scope).facts}
            for scope in (at_once, bit_by_bit)
        ]
        assert found[0] == found[1]
        assert len(found[0]) == 8


def test_the_order_of_saving_decides_only_between_equally_similar_facts(world):
    orders = [["0", "7", "31", "44", "120"], ["120", "31", "0", "44", "7"]]
    found = []
    for order in orders:
        scope = Scope.of(user_id=" ".join(order))
        for text in order:
            settled(world, text, scope=scope)
        found.append({fact.text: world.seen_by(fact) for fact in world.store.list(scope).facts})
    assert found[0] == found[1]


# --- when ---


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def wait_for(condition) -> None:
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to that")


def test_stale_facts_are_encoded_again_one_at_a_time_at_their_pace(opened):
    clock = Clock()
    world = opened("nearest:2", reencode=Pace(0.5, clock))
    world.save("0", "10", "20", "30")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.engine.texts.clear()
    world.save("9", "11", "21")
    wait_for(lambda: len(world.engine.texts) == 4 and not world.encoder.status().in_flight)
    # The three new ones, and one that was due.
    stale = world.encoder.status().stale
    assert stale >= 2
    for left in range(stale - 1, -1, -1):
        world.encoder.notify()
        assert world.encoder.status().stale == left + 1
        clock.now += 2.0
        world.encoder.notify()
        wait_for(lambda left=left: world.encoder.status().stale == left)
    assert len(world.engine.texts) == 4 + stale


def test_a_flush_does_not_keep_to_the_pace_but_for_its_own_scope(world):
    settled(world, "0", "20", "40")
    settled(world, "0", "20", "40", scope=BOB)
    world.save("5")
    world.save("5", scope=BOB)
    world.encoder.flush(WAIT, BOB)
    assert world.ledger.count_stale(MODEL, "nearest:2", BOB) == 0
    assert world.ledger.count_stale(MODEL, "nearest:2", ALICE) > 0
    assert world.encoder.status().stale == world.ledger.count_stale(MODEL, "nearest:2")


def test_with_a_rate_of_zero_nothing_is_encoded_again_nor_waited_for(opened):
    world = opened("nearest:2", reencode=Pace(0.0))
    settled(world, "0", "20", "40")
    settled(world, "5")
    assert world.encoder.status().stale > 0
    world.encoder.flush(WAIT)
    assert world.engine.texts == []


def test_new_facts_are_encoded_before_stale_ones(opened):
    world = opened("nearest:2")
    settled(world, "0", "20", "40")
    world.encoder.pause()
    world.save("5", "15", "25")
    flush = in_background(world)
    wait_for(lambda: world.encoder.status().stale == 3)
    world.encoder.resume()
    flush.join(WAIT)
    assert set(world.engine.texts[:3]) == {"5", "15", "25"}
    assert set(world.engine.texts[3:]) == {"0", "20", "40"}


def test_what_turns_out_to_be_as_it_should_be_is_not_encoded_again(world):
    facts = settled(world, "0", "20", "40")
    mark_stale(world, *facts)
    keys = world.ready(facts)
    world.encoder.flush(WAIT)
    assert world.engine.texts == []
    assert world.ready(facts) == keys
    assert world.encoder.status().stale == 0


def test_what_was_stale_when_the_process_ended_is_encoded_again_by_the_next(opened, world):
    near, *_ = settled(world, "0", "20", "40")
    world.encoder.pause()
    world.save("5")
    wait_for(lambda: world.encoder.status().stale > 0)
    world.encoder.stop(1)
    again = opened("nearest:2")
    again.encoder.start()
    again.encoder.flush(WAIT)
    assert again.seen_by(near) == ["20", "5"]


def test_a_fact_saved_while_no_encoder_ran_is_announced_by_the_next(opened, world):
    near, *_ = settled(world, "0", "20", "40")
    world.encoder.stop(1)
    world.save("5")
    again = opened("nearest:2")
    again.encoder.start()
    again.encoder.flush(WAIT)
    assert again.seen_by(near) == ["20", "5"]


def test_a_stale_fact_that_cannot_be_encoded_again_is_parked_and_served_as_before(world):
    near, *_ = settled(world, "0", "20", "40")
    old = world.ready([near])
    world.engine.before = lambda text: "no room" if text == "0" else None
    world.save("5")
    report = world.encoder.flush(WAIT)
    assert [(parked.fact_id, parked.reason) for parked in report.parked] == [(near.id, "no room")]
    assert world.ready([near]) == old
    world.engine.before = lambda text: None
    world.encoder.retry_parked()
    world.encoder.flush(WAIT)
    assert world.seen_by(near) == ["20", "5"]


def test_a_flush_that_stale_facts_keep_from_ending_says_how_many(world):
    settled(world, "0", "20", "40")
    world.encoder.pause()
    world.save("5")
    wait_for(lambda: world.encoder.status().stale > 0)
    with pytest.raises(FlushTimeoutError, match=r"facts were still waiting to be encoded after 0\.1 s"):
        world.encoder.flush(0.1)


# --- an embedder that fails ---


def test_a_fact_that_cannot_be_embedded_stands_behind_preceding_facts_until_it_can(opened, monkeypatch):
    monkeypatch.setattr("inferscale_memory.encoding.announcer.LOOK_AGAIN", 0.0)
    monkeypatch.setattr("inferscale_memory.retrieval.catalog.FIRST_RETRY_SECONDS", 0.2)
    world = opened("nearest:2")
    settled(world, "90", "0", "80")
    world.embedder.broken = {"1"}
    [fact] = world.save("1")
    world.encoder.flush(WAIT)
    assert world.seen_by(fact) == ["0", "80"]
    assert world.encoder.parked() == []
    world.embedder.broken = set()
    wait_for(lambda: world.encoder.notify() or world.seen_by(fact) == ["80", "0"])
    other = world.store.list(ALICE).facts[1]
    wait_for(lambda: world.encoder.notify() or "1" in world.seen_by(other))


def test_an_embedder_that_is_down_stops_nothing_and_a_warning_says_so(opened, caplog, monkeypatch):
    monkeypatch.setattr("inferscale_memory.retrieval.catalog.FIRST_RETRY_SECONDS", 1e9)
    world = opened("nearest:2")
    world.embedder.dead = True
    facts = world.save("90", "0", "80")
    world.encoder.start()
    report = world.encoder.flush(WAIT)
    assert (report.encoded, report.parked) == (3, ())
    assert world.seen_by(facts[2]) == ["90", "0"]
    assert "3 facts could not be embedded; they are encoded behind preceding facts" in caplog.text
