"""The books of free slots."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.kv import Extent, SlotAllocator

STEPS = 1_000_000
CHECK_EVERY = 50_000


def slots_of(extents: tuple[Extent, ...]) -> list[int]:
    return [slot for start, stop in extents for slot in range(start, stop)]


def test_a_request_that_fits_one_run_gets_one_run():
    slots = SlotAllocator(100)
    assert slots.allocate(30) == (Extent(0, 30),)
    assert slots.allocate(70) == (Extent(30, 100),)


def test_the_shortest_run_that_is_long_enough_is_taken():
    slots = SlotAllocator(100)
    for count in (10, 5, 10):
        slots.allocate(count)
    slots.free((Extent(10, 15),))
    assert slots.allocate(4) == (Extent(10, 14),), "not from the 75 at the end"


def test_what_fits_no_single_run_is_given_several():
    slots = SlotAllocator(30)
    taken = [slots.allocate(10) for _ in range(3)]
    slots.free(taken[0])
    slots.free(taken[2])
    split = slots.allocate(20)
    assert sorted(slots_of(split)) == [*range(10), *range(20, 30)]
    assert slots.free_slots == 0


def test_more_than_is_free_is_refused_and_changes_nothing():
    slots = SlotAllocator(10)
    slots.allocate(4)
    before = slots.free_runs()
    assert slots.allocate(7) is None
    assert slots.free_runs() == before


def test_freed_neighbours_become_one_run_again():
    slots = SlotAllocator(30)
    taken = [slots.allocate(10) for _ in range(3)]
    for extents in (taken[0], taken[2], taken[1]):
        slots.free(extents)
    assert slots.free_runs() == [Extent(0, 30)]


@pytest.mark.parametrize("wrong", [Extent(0, 5), Extent(5, 12), Extent(8, 11), Extent(15, 25), Extent(28, 31)])
def test_slots_that_are_not_taken_cannot_be_freed(wrong):
    slots = SlotAllocator(30)
    slots.allocate(30)
    slots.free((Extent(0, 10), Extent(20, 30)))
    with pytest.raises(InvalidInputError, match="are not taken"):
        slots.free((wrong,))
    slots.check_integrity()


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_cannot_be_asked_for(count):
    with pytest.raises(InvalidInputError, match="wanted 1 or more"):
        SlotAllocator(5).allocate(count)


@given(st.integers(1, 60), st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_no_slot_is_given_out_twice_or_lost(capacity, steps):
    slots, held = SlotAllocator(capacity), []
    for take, number in steps:
        if take:
            found = slots.allocate(number)
            assert (found is None) == (number > capacity - sum(map(len, map(slots_of, held))))
            held += [found] if found else []
        elif held:
            slots.free(held.pop(number % len(held)))
        slots.check_integrity()
        taken = [slot for extents in held for slot in slots_of(extents)]
        free = slots_of(tuple(slots.free_runs()))
        assert sorted(taken + free) == list(range(capacity))


def test_a_million_steps_leave_the_books_right_and_refuse_nothing_that_fits():
    chance = random.Random(0)
    slots, held = SlotAllocator(20_000), []
    for step in range(STEPS):
        if held and (chance.random() < 0.5 or slots.free_slots < 60):
            at = chance.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            slots.free(held.pop())
        else:
            found = slots.allocate(chance.randint(1, 60))
            assert found is not None
            held.append(found)
        if step % CHECK_EVERY == 0:
            slots.check_integrity()
    slots.check_integrity()
    assert slots.free_slots + sum(stop - start for extents in held for start, stop in extents) == 20_000
    # Days of use do not wear locality out either: a fact still lies in one run, nearly always.
    assert sum(map(len, held)) < 1.05 * len(held)
    for extents in held:
        slots.free(extents)
    assert slots.free_runs() == [Extent(0, 20_000)]
