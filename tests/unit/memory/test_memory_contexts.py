"""What the encoder is told by a memory whose embedder cannot be used, and whose policy goes by vectors."""

from __future__ import annotations

import numpy as np
import pytest

from inferscale_memory.contexts import FIRST_PAUSE, MemoryContexts
from inferscale_memory.db import open_database
from inferscale_memory.errors import ModelError, StoreError
from inferscale_memory.facts import FactStore, NewFact
from inferscale_memory.migrations import upgrade
from inferscale_memory.retrieval import CallableEmbedder, NumpyIndex, Retriever
from inferscale_memory.scope import Scope
from tests.unit.memory.standin import StandIn

ALICE = Scope.of(user_id="alice")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    database = open_database(f"sqlite:///{tmp_path / 'facts.db'}")
    upgrade(database)
    yield FactStore(database)
    database.dispose()


def test_an_embedder_that_cannot_be_opened_is_left_alone_for_longer_and_longer(store, caplog):
    tried, clock = [], Clock()

    def open_it():
        tried.append(clock.now)
        raise ModelError("no such model")

    contexts = MemoryContexts(store, open_it, clock)
    [fact] = store.add([NewFact("x")], ALICE).facts
    for second in range(0, 40, 5):
        clock.now = float(second)
        assert contexts.embed_some() is False
        assert contexts.nearest_facts(fact, 3) is None
        assert contexts.embedded([fact.id]) == {}
        assert contexts.reached([fact.id], {fact.id: -2.0}) == set()
        assert contexts.known_until() == 0
    assert tried == [0.0, FIRST_PAUSE, 3 * FIRST_PAUSE]
    assert caplog.text.count("the embedder cannot be used") == 3


def test_it_is_used_once_it_can_be(store):
    clock, broken = Clock(), True

    def embed(texts):
        if broken:
            raise ConnectionError("down")
        return np.eye(2)[[len(text) % 2 for text in texts]]

    retriever = Retriever(store, CallableEmbedder(embed), NumpyIndex())
    contexts = MemoryContexts(store, lambda: retriever, clock)
    fact, other = store.add([NewFact("a"), NewFact("abc")], ALICE).facts
    assert contexts.embed_some() is False
    broken, clock.now = False, FIRST_PAUSE
    assert contexts.embed_some() is True
    assert contexts.embedded([fact.id, other.id]) == {fact.id: 1, other.id: 1}
    assert [(near.fact, near.similarity) for near in contexts.nearest_facts(fact, 3)] == [(other, 1.0)]
    assert contexts.known_until() == store.last_change()


def test_a_database_that_cannot_be_used_is_no_fault_of_the_embedder(store):
    def open_it():
        raise StoreError("disk full")

    with pytest.raises(StoreError, match="disk full"):
        MemoryContexts(store, open_it).embed_some()


def test_a_memory_encodes_behind_what_its_own_index_finds(opened, home):
    memory = opened(StandIn(home), policy="nearest:1")
    memory.add(["a cat", "two dogs", "a black cat"], user_id="alice")
    memory.flush(20)
    facts = memory.list(user_id="alice").facts
    assert [item.text for item in memory.policy.context(facts[0], memory.contexts)] == ["a black cat"]
    assert memory.status().stale == 0


def test_a_policy_that_goes_by_what_was_saved_before_opens_no_embedder(opened, home):
    memory = opened(StandIn(home), policy="preceding:1:fact", embedder="no such model")
    memory.add(["a cat", "two dogs"], user_id="alice")
    assert memory.flush(20).encoded == 2
