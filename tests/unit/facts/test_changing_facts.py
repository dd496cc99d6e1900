import numpy as np
import pytest

from inferscale_memory.errors import FactNotFoundError, InvalidInputError
from inferscale_memory.facts import NewFact
from inferscale_memory.scope import Scope


@pytest.fixture
def fact(store, alice):
    return store.add([NewFact("I live in Graz", metadata={"topic": "home"})], alice).facts[0]


def test_an_update_replaces_the_text_and_keeps_the_old_in_the_history(store, alice, fact):
    updated = store.update(fact.id, alice, text="I live in Linz")
    assert (updated.text, updated.revision, updated.metadata) == ("I live in Linz", 2, {"topic": "home"})
    assert (updated.id, updated.seq, updated.created_at) == (fact.id, fact.seq, fact.created_at)
    assert updated.updated_at > fact.updated_at
    lines = store.history(fact.id, alice)
    assert [(line.revision, line.text, line.kind) for line in lines] == [
        (1, "I live in Graz", "add"),
        (2, "I live in Linz", "update"),
    ]


def test_metadata_is_replaced_whole_and_none_keeps_it(store, alice, fact):
    assert store.update(fact.id, alice, metadata={"a": 1}).metadata == {"a": 1}
    assert store.update(fact.id, alice, text="new").metadata == {"a": 1}
    assert store.update(fact.id, alice, metadata={}).metadata == {}


def test_an_update_that_changes_nothing_is_no_revision(store, alice, fact):
    before = (store.epoch(alice), store.last_change())
    assert store.update(fact.id, alice, text=fact.text, metadata=fact.metadata) == fact
    assert store.update(fact.id, alice) == fact
    assert (store.epoch(alice), store.last_change()) == before


def test_an_update_into_what_another_fact_says_names_that_fact(store, alice, fact):
    (other,) = store.add([NewFact("I live in Linz")], alice).facts
    with pytest.raises(InvalidInputError, match=other.id):
        store.update(fact.id, alice, text=" I  live in Linz ")
    assert store.get(fact.id, alice) == fact


def test_rewriting_a_fact_in_another_form_of_the_same_text_is_allowed(store, alice, fact):
    assert store.update(fact.id, alice, text="I  live in Graz").revision == 2


@pytest.mark.parametrize(("change", "message"), [({"text": " "}, "blank"), ({"metadata": {"x": {1}}}, "JSON")])
def test_an_unusable_update_leaves_the_fact_as_it_was(store, alice, fact, change, message):
    with pytest.raises(InvalidInputError, match=message):
        store.update(fact.id, alice, **change)
    assert store.get(fact.id, alice) == fact


def test_update_delete_and_delete_all_raise_the_epoch_of_their_owner_only(store, alice, fact):
    bob = Scope.of(user_id="bob")
    store.add([NewFact("bob's")], bob)
    epochs = [store.epoch(alice)]
    store.update(fact.id, alice, text="changed")
    epochs.append(store.epoch(alice))
    store.delete(fact.id, alice)
    epochs.append(store.epoch(alice))
    store.add([NewFact("more")], alice)
    store.delete_all(alice)
    epochs.append(store.epoch(alice))
    assert epochs == sorted(set(epochs))
    assert store.epoch(bob) == 0


def test_every_scope_of_one_principal_has_the_same_epoch(store, alice):
    assert store.raise_epoch(Scope.of(user_id="alice", session_id="s")) == 1
    assert store.epoch(alice) == 1


def test_the_change_log_replays_to_what_is_there(store, alice, fact):
    store.add([NewFact(f"fact {i}") for i in range(5)], alice)
    store.update(fact.id, alice, text="changed")
    gone = store.list(alice).facts[2]
    store.delete(gone.id, alice)
    state, seq = {}, 0
    while changes := store.changes_since(seq, limit=2):
        assert all(change.seq > seq for change in changes)
        seq = changes[-1].seq
        state.update((change.fact_id, change.kind) for change in changes)
    assert seq == store.last_change()
    assert state.pop(gone.id) == "delete"
    assert set(state) == {found.id for found in store.list(alice).facts}
    assert set(state.values()) == {"upsert"}


def test_an_empty_log_is_at_zero(store):
    assert store.last_change() == 0
    assert store.changes_since(0) == []


def test_a_further_source_is_no_change_for_indexes(store, alice, fact):
    before = store.last_change()
    store.add([NewFact("I live in Graz")], alice)
    assert store.last_change() == before


def vector(*values: float) -> bytes:
    return np.array(values, dtype=np.float32).tobytes()


def test_vectors_come_back_by_embedder_with_their_revision(store, fact):
    assert store.put_vectors("e1", [(fact.id, 1, vector(1, 2))]) == 1
    assert store.put_vectors("e2", [(fact.id, 1, vector(3))]) == 1
    found = store.get_vectors("e1", [fact.id, "missing"])
    assert found == {fact.id: (1, vector(1, 2))}
    assert store.put_vectors("e1", [(fact.id, 1, vector(4, 5))]) == 1
    assert store.get_vectors("e1", [fact.id])[fact.id].data == vector(4, 5)


def test_the_vector_of_a_text_that_was_changed_or_deleted_meanwhile_is_dropped(store, alice, fact):
    store.update(fact.id, alice, text="changed")
    assert store.put_vectors("e", [(fact.id, 1, vector(1)), ("0" * 32, 1, vector(1))]) == 0
    store.delete(fact.id, alice)
    assert store.put_vectors("e", [(fact.id, 2, vector(1))]) == 0
    assert store.get_vectors("e", [fact.id]) == {}


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_bytes_that_are_no_float32_vector_are_refused(store, fact, data):
    with pytest.raises(InvalidInputError, match="multiple of 4"):
        store.put_vectors("e", [(fact.id, 1, data)])


def test_get_many_takes_more_ids_than_one_query_can(store, alice):
    facts = store.add([NewFact(f"fact {i}") for i in range(1200)], alice).facts
    assert store.get_many([fact.id for fact in facts]) == {fact.id: fact for fact in facts}


def test_deleting_twice_is_not_found_the_second_time(store, alice, fact):
    assert store.delete(fact.id, alice) == fact
    with pytest.raises(FactNotFoundError, match=fact.id):
        store.delete(fact.id, alice)
