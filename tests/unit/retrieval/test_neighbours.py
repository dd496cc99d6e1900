"""Which facts are most like a fact, and whom a new one reaches."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_memory.db import open_database
from inferscale_memory.facts import FactStore, NewFact
from inferscale_memory.migrations import upgrade
from inferscale_memory.retrieval import CallableEmbedder, NumpyIndex, Retriever
from inferscale_memory.scope import Scope

ALICE = Scope.of(user_id="alice")


def direction(text: str) -> np.ndarray:
    """A text that begins with a number of degrees is the vector of that direction."""
    angle = np.radians(float(text.split()[0]))
    return np.array([np.cos(angle), np.sin(angle)], dtype=np.float32)


class World:
    def __init__(self, folder):
        database = open_database(f"sqlite:///{folder / 'facts.db'}")
        upgrade(database)
        self.store = FactStore(database)
        embedder = CallableEmbedder(lambda texts: np.stack([direction(t) for t in texts]), id="angles", dim=2)
        self.retriever = Retriever(self.store, embedder, NumpyIndex())
        self.neighbours = self.retriever.neighbours

    def save(self, *texts, scope=ALICE):
        facts = self.store.add([NewFact(text) for text in texts], scope).facts
        self.retriever.sync()
        return facts

    def nearest(self, fact, n):
        found = self.neighbours.nearest(fact, n)
        return None if found is None else [other.text for other, _ in found]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One world for many examples, each of a user of its own."""
    return World(tmp_path_factory.mktemp("shared"))


def test_the_most_similar_come_first_and_the_fact_itself_is_none_of_them(world):
    fact, *_ = world.save("0", "40", "10", "-20", "90")
    assert world.nearest(fact, 3) == ["10", "-20", "40"]
    [(_, cosine)] = world.neighbours.nearest(fact, 1)
    assert cosine == pytest.approx(np.cos(np.radians(10)), abs=1e-5)


def test_all_come_where_there_are_fewer_than_asked_for(world):
    fact, *_ = world.save("0", "40")
    assert world.nearest(fact, 5) == ["40"]
    assert world.nearest(fact, 0) == []


def test_of_equally_similar_facts_those_saved_first_are_taken_however_many_there_are(world):
    fact, *others = world.save("0", *(f"30 number {i}" for i in range(40)))
    assert world.nearest(fact, 3) == [other.text for other in others[:3]]


def test_later_facts_count_like_earlier_ones(world):
    _, fact = world.save("20", "0")
    world.save("5")
    assert world.nearest(fact, 2) == ["5", "20"]


def test_only_what_is_seen_wherever_the_fact_is_seen_is_its_neighbour(world):
    with_agent = Scope.of(user_id="alice", agent_id="cook")
    [plain] = world.save("0")
    [cook] = world.save("1", scope=with_agent)
    world.save("2", scope=Scope.of(user_id="alice", session_id="s"))
    world.save("3", scope=Scope.of(user_id="bob"))
    world.save("4", scope=Scope.of(user_id="alice", agent_id="driver"))
    assert world.nearest(plain, 9) == []
    assert world.nearest(cook, 9) == ["0"]


def test_a_fact_that_is_not_embedded_at_its_revision_has_no_neighbours_to_tell_of(world):
    fact, other = world.save("0", "10")
    updated = world.store.update(fact.id, ALICE, text="90")
    assert world.nearest(updated, 1) is None
    assert world.nearest(other, 1) == []
    world.retriever.sync()
    assert world.nearest(updated, 1) == ["10"]


def test_a_deleted_fact_is_no_neighbour_even_before_the_index_knows(world):
    fact, gone, *_ = world.save("0", "10", "20")
    world.store.delete(gone.id, ALICE)
    assert world.nearest(fact, 1) == ["20"]


def test_a_fact_reaches_those_who_ask_for_no_more_than_its_similarity_and_may_see_it(world):
    near, far, indifferent = world.save("10", "80", "12")
    [stranger] = world.save("11", scope=Scope.of(user_id="bob"))
    [new] = world.save("0")
    asked = {near.id: 0.9, far.id: 0.9, indifferent.id: 0.99, stranger.id: -2.0, new.id: -2.0, "nobody": -2.0}
    assert world.neighbours.reached([new.id], asked) == {near.id}
    assert world.neighbours.reached([new.id], {far.id: -2.0}) == {far.id}
    assert world.neighbours.reached([], asked) == world.neighbours.reached(["nobody"], asked) == set()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 180), min_size=3, max_size=12), st.integers(1, 4), st.data())
def test_whoever_gets_a_new_neighbour_is_reached_by_it(shared, angles, n, data):
    world, user = shared, Scope.of(user_id=uuid.uuid4().hex)
    facts = world.save(*(f"{angle} number {i}" for i, angle in enumerate(angles)), scope=user)
    before = {fact.id: world.neighbours.nearest(fact, n) for fact in facts}
    reach = {fact_id: near[-1][1] if len(near) == n else -2.0 for fact_id, near in before.items()}
    [new] = world.save(f"{data.draw(st.integers(0, 180))} new", scope=user)
    changed = {fact.id for fact in facts if world.neighbours.nearest(fact, n) != before[fact.id]}
    assert changed <= world.neighbours.reached([new.id], reach)
