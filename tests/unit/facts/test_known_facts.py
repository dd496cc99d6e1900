"""What the store keeps in memory of facts it has read never hides what the database says now."""

import pytest
from sqlalchemy import event

from inferscale_memory.facts import FactStore, NewFact, NewTurn
from inferscale_memory.facts.known import KnownFacts


@pytest.fixture
def saved(store, alice):
    return store.add([NewFact(f"fact {n}", metadata={"n": [n]}) for n in range(3)], alice).facts


def read(store, facts):
    return store.get_many([fact.id for fact in facts])


def test_a_fact_read_before_is_not_read_whole_again(store, saved, engine):
    first = read(store, saved)
    statements = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert read(store, saved) == first
    assert not any("facts.text" in statement for statement in statements)


def test_an_update_by_another_process_is_read(store, saved, alice, engine):
    read(store, saved)
    FactStore(engine).update(saved[0].id, alice, text="renewed")
    assert read(store, saved)[saved[0].id].text == "renewed"


def test_a_deletion_by_another_process_is_seen_and_leaves_nothing_behind(store, saved, alice, engine):
    read(store, saved)
    FactStore(engine).delete(saved[0].id, alice)
    assert set(read(store, saved)) == {fact.id for fact in saved[1:]}
    assert len(store._known) == 2


def test_a_further_source_of_a_fact_is_seen(store, alice):
    def say(message):
        return store.add([NewFact("said", turn_ids=(message,))], alice, turns=[NewTurn("user", "said", id=message)])

    [fact] = say("one").facts
    assert len(read(store, [fact])[fact.id].turn_ids) == 1
    say("two")
    assert len(read(store, [fact])[fact.id].turn_ids) == 2


def test_what_a_caller_does_to_a_facts_metadata_stays_with_him(store, saved):
    read(store, saved)[saved[0].id].metadata["n"].append("scribble")
    assert read(store, saved)[saved[0].id].metadata == {"n": [0]}


def test_what_is_rolled_back_is_not_kept(store, saved, alice):
    def undone():
        with store.transaction() as tx:
            store.update(saved[0].id, alice, text="never committed", tx=tx)
            assert store.get_many([saved[0].id], tx=tx)[saved[0].id].text == "never committed"
            raise RuntimeError("undo")

    with pytest.raises(RuntimeError, match="undo"):
        undone()
    store.update(saved[0].id, alice, text="committed")
    assert read(store, saved)[saved[0].id].text == "committed"


def test_no_more_than_the_capacity_is_kept(store, saved):
    known = KnownFacts(capacity=2)
    with store._read(None) as session:
        assert len(known.read(session, [fact.id for fact in saved])) == 3
    assert len(known) == 2


def test_more_facts_than_one_statement_names_are_read(store, alice):
    facts = store.add([NewFact(f"fact {n}") for n in range(1200)], alice).facts
    assert read(store, facts) == read(store, facts) == {fact.id: fact for fact in facts}


def test_a_row_read_before_a_deletion_is_not_kept_after_it(store, saved):
    known = KnownFacts()
    kept = known._kept
    known._kept = lambda current: known.forget([saved[0].id]) or kept(current)
    with store._read(None) as session:
        assert len(known.read(session, [fact.id for fact in saved])) == 3
    assert len(known) == 0
