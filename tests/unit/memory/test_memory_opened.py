"""Which memories are open here, and handles for facts that were found before."""

from __future__ import annotations

import gc

import pytest

from inferscale_memory import InvalidInputError, ScopeError
from inferscale_memory.opened import open_memories, place_of


def test_open_memories_are_listed_the_newest_last_until_they_are_closed(opened):
    first, second = opened(), opened()
    assert open_memories(first.place) == [first, second]
    second.close()
    assert open_memories(first.place) == [first]


def test_a_memory_that_nobody_holds_is_not_kept_alive(tmp_path):
    from tests.unit.memory.toys import open_memory

    memory = open_memory(home=tmp_path / "elsewhere")
    place = memory.place
    memory._database.dispose()
    del memory
    gc.collect()
    assert open_memories(place) == []


def test_the_place_is_that_of_the_database_and_tells_nothing_of_it(memory, home):
    assert len(memory.place) == 32
    assert memory.place == place_of(memory.settings.database)
    assert str(home) not in memory.place
    one, other = (place_of(f"postgresql://me:{word}@host/facts") for word in ("secret", "changed"))
    assert one == other != place_of("postgresql://me@host/other")


def test_facts_that_were_found_can_be_named_anew_and_in_part(memory):
    memory.add(["Alice likes tea.", "Alice likes chess.", "Alice likes rain."], user_id="alice")
    found = memory.recall("What does Alice like, tea?", 3, user_id="alice")
    assert memory.name(found.facts, user_id="alice") == found
    part = memory.name(found.facts[:1], refresh=1, user_id="alice")
    assert part.facts == found.facts[:1]
    [fact] = memory.explain(part).facts
    assert (fact.fact, fact.refreshed) == (found.facts[0].fact, True)


def test_naming_is_refused_for_nobody_and_for_a_negative_refresh(memory):
    with pytest.raises(ScopeError, match="no scope"):
        memory.name([])
    with pytest.raises(InvalidInputError, match="refresh is -1"):
        memory.name([], refresh=-1, user_id="alice")


def test_anothers_facts_are_named_in_vain(memory):
    memory.add("Bob likes tea.", user_id="bob")
    bobs = memory.search("tea", user_id="bob")
    assert memory.explain(memory.name(bobs, user_id="alice")).facts == ()
