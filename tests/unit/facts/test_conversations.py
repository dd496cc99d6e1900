"""Turns as a conversation, and what was remembered of each."""

import pytest

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts import coerce_items
from inferscale_memory.scope import Scope


def say(store, scope, *texts):
    """Alternating messages of a user and an assistant; the facts made of them."""
    roles = ("user", "assistant")
    found = coerce_items([{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)])
    result = store.add(found.facts, scope, turns=found.turns)
    assert not result.errors
    return result.facts


def texts(turns):
    return [turn.text for turn in turns]


def test_the_newest_turns_come_oldest_first(store, alice):
    say(store, alice, "one", "two", "three", "four")
    assert texts(store.turns(alice, limit=3)) == ["two", "three", "four"]
    assert texts(store.turns(alice, limit=9)) == texts(store.turns(alice)) == ["one", "two", "three", "four"]


def test_a_session_sees_its_own_turns_only_and_its_user_sees_all(store, alice):
    first = Scope.of(user_id="alice", session_id="first")
    second = Scope.of(user_id="alice", session_id="second")
    say(store, alice, "in no session")
    say(store, first, "in the first")
    say(store, second, "in the second")
    assert texts(store.turns(first)) == ["in the first"]
    assert texts(store.turns(second)) == ["in the second"]
    assert texts(store.turns(alice)) == ["in no session", "in the first", "in the second"]
    assert store.turns(Scope.of(user_id="bob", session_id="first")) == []


def test_the_turns_shown_are_those_that_deleting_the_scope_removes(store, alice):
    session = Scope.of(user_id="alice", session_id="s")
    say(store, alice, "stays")
    say(store, session, "goes")
    store.delete_all(session)
    assert store.turns(session) == []
    assert texts(store.turns(alice)) == ["stays"]


def test_a_deleted_turn_leaves_the_conversation(store, alice):
    facts = say(store, alice, "kept", "said and unsaid")
    store.delete(facts[1].id, alice)
    assert texts(store.turns(alice)) == ["kept"]


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.0])
def test_a_limit_that_is_no_number_of_turns_is_refused(store, alice, limit):
    with pytest.raises(InvalidInputError, match="wanted a number of turns"):
        store.turns(alice, limit=limit)


def test_facts_are_found_by_their_turns(store, alice):
    dog, cat = say(store, alice, "the dog barks", "the cat sleeps")
    (again,) = say(store, alice, "the dog barks")
    assert again.id == dog.id
    first, second, third = store.turns(alice)
    found = store.facts_of_turns([first.id, second.id, third.id, "0" * 32])
    assert found == {first.id: (dog.id,), second.id: (cat.id,), third.id: (dog.id,)}


def test_a_turn_of_which_nothing_was_remembered_names_no_fact(store, alice):
    found = coerce_items([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}])
    store.add(found.facts, alice, turns=found.turns)
    system, user = store.turns(alice)
    assert system.role == "system"
    assert set(store.facts_of_turns([system.id, user.id])) == {user.id}
