import random
import sqlite3

import numpy as np
import pytest
from sqlalchemy import inspect

from inferscale_memory.facts import NewFact, NewTurn, coerce_items
from inferscale_memory.scope import Scope


def raw(path) -> bytes:
    """Everything SQLite keeps: the file, its log, its index of the log."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))


def tell(store, scope, *texts, start=0):
    messages = [{"role": "user", "content": text, "id": str(start + i)} for i, text in enumerate(texts)]
    turns, facts = coerce_items(messages)
    return store.add(facts, scope, turns=turns).facts


def test_a_deleted_text_is_nowhere_in_the_files(store, engine, path, alice):
    secret, keep = "the vault code is 7391 ✓", "a fact that stays"
    fact, _ = tell(store, alice, secret, keep)
    store.update(fact.id, alice, text="rewritten SECRETWORD", metadata={"note": "SECRETNOTE"})
    store.put_vectors("e", [(fact.id, 2, np.full(8, 0.1234567, np.float32).tobytes())])
    traces = [secret, "SECRETWORD", "SECRETNOTE"]
    needles = [*(trace.encode() for trace in traces), np.float32(0.1234567).tobytes() * 2]
    engine.dispose()
    before = raw(path)
    assert all(needle in before for needle in needles)
    store.delete(fact.id, alice)
    engine.dispose()
    after = raw(path)
    assert not any(needle in after for needle in needles)
    assert keep.encode() in after


@pytest.mark.parametrize("seed", [10, *(pytest.param(seed, marks=pytest.mark.full) for seed in (5, 11))])
def test_no_copy_stays_in_pages_whose_rows_moved(store, engine, path, seed):
    # secure_delete alone leaves some here: rows that moved to another page before they were deleted.
    rng = random.Random(seed)
    owners = [Scope.of(user_id=name) for name in "abc"]
    alive, total = {}, 0
    for _ in range(40):
        owner, size = rng.choice(owners), rng.randint(1, 12)
        marks = [f"MARK{total + i:06d}X" for i in range(size)]
        texts = [mark + "y" * rng.choice([5, 50, 300, 1500, 6000]) for mark in marks]
        for mark, fact in zip(marks, tell(store, owner, *texts, start=total), strict=True):
            alive[mark] = (fact.id, owner)
        total += size
        with store.transaction() as tx:
            for mark in rng.sample(sorted(alive), min(len(alive), rng.randint(0, 8))):
                store.delete(*alive.pop(mark), tx=tx)
    assert store.scrub()
    engine.dispose()
    left = raw(path)
    assert not [i for i in range(total) if f"MARK{i:06d}X" not in alive and f"MARK{i:06d}X".encode() in left]
    assert all(mark.encode() in left for mark in alive)


def test_no_table_holds_a_row_of_a_deleted_fact_but_the_change_log(store, engine, alice):
    (fact,) = tell(store, alice, "gone soon")
    store.put_vectors("e", [(fact.id, 1, b"\0" * 4)])
    store.delete(fact.id, alice)
    with engine.connect() as connection:
        counts = {
            table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            for table in ("facts", "turns", "fact_sources", "fact_revisions", "fact_idempotency", "fact_vectors")
        }
        assert "fact_changes" in inspect(connection).get_table_names()
    assert set(counts.values()) == {0}
    assert [change.kind for change in store.changes_since(0)] == ["upsert", "delete"]


def test_a_turn_that_another_fact_names_keeps_its_place_without_its_text(store, alice):
    turn = NewTurn("user", "I am Ann and I like tea", id="m")
    name, tea = store.add([NewFact("Ann", turn_ids=("m",)), NewFact("tea", turn_ids=("m",))], alice, turns=[turn]).facts
    store.delete(name.id, alice)
    (left,) = store.get_turns(tea.turn_ids).values()
    assert left.text == ""
    assert store.get(tea.id, alice) == tea
    store.delete(tea.id, alice)
    assert store.get_turns(tea.turn_ids) == {}


def test_an_emptied_turn_is_no_context_and_is_filled_when_the_message_comes_again(store, alice):
    turn = NewTurn("user", "both", id="m")
    one, _ = store.add([NewFact("1", turn_ids=("m",)), NewFact("2", turn_ids=("m",))], alice, turns=[turn]).facts
    (later,) = tell(store, alice, "later", start=10)
    store.delete(one.id, alice)
    assert store.preceding_turns(later, 5) == []
    store.add([NewFact("1", turn_ids=("m",))], alice, turns=[turn])
    assert [found.text for found in store.preceding_turns(later, 5)] == ["both"]


def test_a_deleted_fact_can_be_saved_again_as_a_new_one(store, alice):
    (fact,) = tell(store, alice, "again")
    store.delete(fact.id, alice)
    (new,) = tell(store, alice, "again")
    assert new.id != fact.id
    assert new.seq > fact.seq


def test_the_same_words_of_another_user_stay(store, alice):
    bob = Scope.of(user_id="bob")
    (mine,), (theirs,) = tell(store, alice, "same words"), tell(store, bob, "same words")
    store.delete(mine.id, alice)
    assert store.get(theirs.id, bob) == theirs
    assert store.get_turns(theirs.turn_ids)[theirs.turn_ids[0]].text == "same words"


def test_delete_all_of_a_user_takes_every_session_and_every_turn(store, engine, path, alice):
    session = Scope.of(user_id="alice", session_id="s")
    turns = [NewTurn("system", "SYSTEMTEXT"), NewTurn("tool", "TOOLTEXT")]
    store.add([NewFact("GENERAL")], alice, turns=turns)
    tell(store, session, "INSESSION")
    tell(store, Scope.of(user_id="bob", session_id="s"), "BOBSTEXT")
    assert sorted(fact.text for fact in store.delete_all(alice)) == ["GENERAL", "User: INSESSION"]
    engine.dispose()
    left = raw(path)
    assert not [word for word in (b"SYSTEMTEXT", b"TOOLTEXT", b"GENERAL", b"INSESSION") if word in left]
    assert b"BOBSTEXT" in left


def test_delete_all_of_a_session_leaves_what_is_known_in_general(store, alice):
    session = Scope.of(user_id="alice", session_id="s")
    tell(store, alice, "general")
    tell(store, session, "in session")
    assert [fact.text for fact in store.delete_all(session)] == ["User: in session"]
    assert [fact.text for fact in store.list(session).facts] == ["User: general"]


def test_delete_all_of_an_empty_scope_is_nothing(store, alice):
    assert store.delete_all(alice) == ()
    assert store.epoch(alice) == 0


def test_a_wipe_that_a_reader_holds_up_is_due_until_it_is_done(store, engine, path, alice, monkeypatch):
    monkeypatch.setattr("inferscale_memory.facts.session._READERS_WAIT_MS", 20)
    (fact,) = tell(store, alice, "HELDUPTEXT")
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM facts").fetchall()
    store.delete(fact.id, alice)
    assert store.get(fact.id, alice) is None
    assert not store.scrub()
    reader.close()
    assert store.scrub()
    engine.dispose()
    assert b"HELDUPTEXT" not in raw(path)
