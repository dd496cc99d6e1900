"""An item's texts are facts: they come and go with it, and with nothing else."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import select

from inferscale_memory.items import Put
from inferscale_memory.items.store import ItemStore
from inferscale_memory.items.tables import ItemFactRow
from tests.unit.memory.standin import StandIn

ALICE = ("alice",)


def put(items, key, *texts, namespace=ALICE, **more):
    items.put([Put(namespace, key, {"texts": list(texts)}, texts, **more)])


def facts(memory, user="alice"):
    return [fact.text for fact in memory.list(user_id=user).facts]


def test_an_items_texts_are_facts_of_the_user_that_the_namespace_is(items, memory):
    put(items, "k", "I like tea", "I live in Graz")
    put(items, "k", "work", namespace=("alice", "jobs"))
    assert facts(memory) == ["I like tea", "I live in Graz"]
    assert facts(memory, "alice/jobs") == ["work"]
    assert [hit.fact.text for hit in memory.search("tea", 1, user_id="alice")] == ["I like tea"]


def test_deleting_an_item_deletes_its_facts(items, memory):
    put(items, "k", "I like tea")
    items.put([Put(ALICE, "k", None)])
    assert facts(memory) == []
    assert memory.search("tea", user_id="alice") == []


def test_overwriting_an_item_deletes_the_facts_it_no_longer_has_and_keeps_the_others(items, memory):
    put(items, "k", "I like tea", "I live in Graz")
    before = {fact.text: fact.id for fact in memory.list(user_id="alice").facts}
    put(items, "k", "I live in Graz", "I like coffee")
    after = {fact.text: fact.id for fact in memory.list(user_id="alice").facts}
    assert set(after) == {"I live in Graz", "I like coffee"}
    assert after["I live in Graz"] == before["I live in Graz"]


def test_a_fact_of_two_items_stays_until_both_are_gone(items, memory):
    put(items, "one", "I like tea")
    put(items, "two", "I  like tea")
    assert facts(memory) == ["I like tea"]
    items.put([Put(ALICE, "one", None)])
    assert facts(memory) == ["I like tea"]
    items.put([Put(ALICE, "two", None)])
    assert facts(memory) == []


def test_a_text_that_moves_to_another_item_in_one_call_keeps_its_fact(items, memory):
    put(items, "from", "I like tea")
    (before,) = memory.list(user_id="alice").facts
    items.put([Put(ALICE, "from", None), Put(ALICE, "to", {}, ("I like tea",))])
    assert memory.list(user_id="alice").facts == (before,)
    items.put([Put(ALICE, "to", None)])
    assert facts(memory) == []


def test_a_fact_that_was_remembered_before_stays_when_the_item_goes(items, memory):
    memory.add("I like tea", user_id="alice")
    put(items, "k", "I like tea", "I live in Graz")
    items.put([Put(ALICE, "k", None)])
    assert facts(memory) == ["I like tea"]


def test_a_fact_that_was_said_in_a_conversation_since_stays_when_the_item_goes(items, memory):
    put(items, "k", "User: I like tea")
    memory.add([{"role": "user", "content": "I like tea"}], user_id="alice")
    items.put([Put(ALICE, "k", None)])
    assert facts(memory) == ["User: I like tea"]


def test_deleting_a_fact_deletes_the_items_that_hold_its_text_and_what_else_they_said(items, memory):
    put(items, "one", "I like tea", "I live in Graz")
    put(items, "two", "I live in Graz", "I have a dog")
    put(items, "three", "I have a dog")
    (tea,) = (fact for fact in memory.list(user_id="alice").facts if fact.text == "I like tea")
    memory.delete(tea.id, user_id="alice")
    assert [item is not None for item in items.get([(ALICE, "one"), (ALICE, "two"), (ALICE, "three")])] == [
        False,
        True,
        True,
    ]
    assert facts(memory) == ["I live in Graz", "I have a dog"]


def test_deleting_somebody_elses_fact_is_refused_and_deletes_no_item(items, memory):
    put(items, "k", "I like tea")
    (tea,) = memory.list(user_id="alice").facts
    with pytest.raises(KeyError, match="no fact"):
        memory.delete(tea.id, user_id="bob")
    assert items.get([(ALICE, "k")])[0] is not None


def test_deleting_all_of_a_user_deletes_the_users_items_indexed_or_not_and_nobody_elses(items, memory):
    put(items, "k", "I like tea")
    put(items, "quiet")
    put(items, "k", "I like tea", namespace=("bob",))
    assert memory.delete_all(user_id="alice") == 1
    assert items.namespaces() == [("bob",)]
    assert facts(memory, "bob") == ["I like tea"]


def test_what_cannot_be_a_fact_is_kept_but_not_found_by_meaning(items, memory, caplog):
    with caplog.at_level(logging.WARNING):
        put(items, "k", "I like tea", "x" * 40_000, " \n", "nul\0")
    assert facts(memory) == ["I like tea"]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "a text of the item 'k' is kept but cannot be searched for"
    ] * 2
    assert items.get([(ALICE, "k")])[0].value["texts"][1] == "x" * 40_000


def test_no_handle_is_remembered(items, memory):
    memory.add("I like tea", user_id="bob")
    handle = memory.recall("tea", user_id="bob")
    put(items, "k", f"I like {handle} cake")
    assert str(handle) not in facts(memory)[0]


@pytest.mark.parametrize("texts", [("The secret is zyzzyva.",), ()], ids=["indexed", "not indexed"])
def test_nothing_of_a_deleted_item_is_left_in_the_database_file(items, memory, home, texts):
    for n in range(40):
        put(items, f"{n}", f"filler {n}")
    items.put([Put(ALICE, "k", {"text": "The secret is zyzzyva."}, texts)])
    file = home / "memory" / "facts.db"

    def on_disk():
        return b"".join(path.read_bytes() for path in file.parent.glob("facts.db*"))

    assert b"zyzzyva" in on_disk()
    items.put([Put(ALICE, "k", None)])
    assert b"zyzzyva" not in on_disk()


def test_the_kv_of_a_deleted_items_facts_goes_too_and_handles_forget_them(opened, home):
    memory = opened(StandIn(home), policy="preamble")
    items = ItemStore(memory)
    put(items, "k", "I like tea")
    put(items, "other", "I live in Graz")
    memory.flush(60)
    handle = memory.recall("tea", user_id="alice")
    assert len(memory.chunks.keys()) == 2
    items.put([Put(ALICE, "k", None)])
    assert len(memory.chunks.keys()) == 1
    explained = memory.explain(handle)
    assert ([one.fact.text for one in explained.facts], explained.deleted) == (["I live in Graz"], 1)


class PowerCutError(Exception):
    pass


def cut(*_, **__):
    raise PowerCutError


@pytest.mark.parametrize("step", ["inferscale_memory.items.writing._relink", "inferscale_memory.items.writing.orphans"])
def test_a_crash_while_writing_leaves_everything_as_it_was(items, memory, monkeypatch, step):
    put(items, "k", "I like tea")
    with monkeypatch.context() as patch:
        patch.setattr(step, cut)
        with pytest.raises(PowerCutError):
            items.put([Put(ALICE, "k", {"v": 2}, ("I like coffee",)), Put(ALICE, "new", {}, ("I live in Graz",))])
    assert items.get([(ALICE, "k"), (ALICE, "new")])[0].value == {"texts": ["I like tea"]}
    assert items.get([(ALICE, "new")]) == [None]
    assert facts(memory) == ["I like tea"]


def test_what_a_crash_after_a_deletion_leaves_on_disk_is_erased_by_the_next_opening(opened, home, monkeypatch):
    memory = opened(StandIn(home), policy="preamble")
    items = ItemStore(memory)
    put(items, "k", "The secret is zyzzyva.")
    memory.flush(60)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_after_forgetting", cut)
        patch.setattr(type(memory.store._transactions), "scrub", lambda _: False)
        with pytest.raises(PowerCutError):
            items.put([Put(ALICE, "k", None)])
    assert items.get([(ALICE, "k")]) == [None]
    assert len(memory.chunks.keys()) == 1
    memory.close()
    again = opened()
    assert list(again.chunks.keys()) == []
    assert b"zyzzyva" not in (home / "memory" / "facts.db").read_bytes()


def test_links_never_outlive_item_or_fact(items, memory):
    put(items, "one", "I like tea", "I live in Graz")
    put(items, "two", "I like tea")
    memory.store.delete_many(fact.id for fact in memory.list(user_id="alice").facts)  # past the items
    with memory.store.transaction() as tx:
        assert tx.scalars(select(ItemFactRow)).all() == []
    put(items, "one", "I like tea")
    assert facts(memory) == ["I like tea"]
