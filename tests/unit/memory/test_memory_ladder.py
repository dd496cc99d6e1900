"""A ladder: several chunks of each fact, of which a prompt takes the one for the fact's place."""

from __future__ import annotations

import pytest

from inferscale_memory.encoding.policies import rungs_of
from tests.unit.memory.standin import StandIn
from tests.unit.memory.test_memory_encoding import chunk_files

FACTS = [f"dog number {n} likes {n} bones" for n in range(12)]


@pytest.fixture
def ladder(opened, home):
    memory = opened(StandIn(home), policy="ladder:2:4")
    memory.add(FACTS, user_id="alice")
    assert memory.flush(60).encoded == 12, "facts are counted, not chunks"
    return memory


def policies_in_prompt(memory, handle):
    """Of each injected fact, in prompt order, the policy of the chunk that stands for it."""
    resolution = memory.engine.resolver.resolve([handle], None)
    found = memory.ledger.lookup_all([f.id for f in resolution.facts], memory.engine.fingerprint, names(memory))
    policy_of = {ref.key: name for refs in found.values() for name, ref in refs.items()}
    return [policy_of[resolution.keys[fact.id]] for fact in resolution.facts]


def names(memory):
    return [rung.name for rung in rungs_of(memory.policy)]


def test_each_place_of_a_prompt_takes_the_chunk_of_its_rung(ladder):
    first, small, large = "preamble", "preceding:2:fact", "nearest:4"
    handle = ladder.recall("dog", 7, refresh=0, user_id="alice")
    assert policies_in_prompt(ladder, handle) == [first, small, small, large, large, large, large]
    handle = ladder.recall("dog", 3, 1, user_id="alice")
    assert policies_in_prompt(ladder, handle) == [first, small], "refreshed facts stand behind and are text"


def test_what_is_recalled_is_fetched_ahead_by_the_chunks_that_the_prompt_will_take(ladder):
    handle = ladder.recall("dog", 7, refresh=0, user_id="alice")
    keys = set(ladder.engine.resolver.resolve([handle], None).keys.values())
    for _ in range(200):
        if keys <= set(ladder.engine.prefetched):
            break
        ladder.flush(5)
    assert set(ladder.engine.prefetched) == keys


def test_a_deleted_fact_takes_all_its_chunks_along_and_those_that_saw_it(ladder, home):
    assert len(chunk_files(home)) == 3 * len(FACTS)
    handle = ladder.recall("dog", 1, refresh=0, user_id="alice")
    (gone,) = ladder.explain(handle).facts
    ladder.delete(gone.fact.id, user_id="alice")
    assert ladder.ledger.lookup_all([gone.fact.id], ladder.engine.fingerprint, names(ladder)) == {}
    ladder.flush(60)
    assert len(chunk_files(home)) == 3 * (len(FACTS) - 1)
    assert ladder.status().waiting == ladder.status().stale == 0


def test_a_fact_of_which_no_chunk_is_made_yet_stands_behind_the_others(ladder):
    ladder.encoder.pause()
    (new,) = ladder.add("my dog is new", user_id="alice").facts
    handle = ladder.recall("my dog is new", 5, refresh=0, user_id="alice")
    resolution = ladder.engine.resolver.resolve([handle], None)
    assert [fact.id for fact in resolution.facts][-1] == new.id
    assert new.id not in resolution.keys
    assert len(resolution.keys) == 4
    ladder.encoder.resume()


def test_memories_of_a_rungs_own_policy_share_its_chunks(ladder, opened, home):
    files = chunk_files(home)
    plain = opened(StandIn(home), policy="nearest:4")
    assert plain.flush(60).encoded == 0
    assert chunk_files(home) == files
