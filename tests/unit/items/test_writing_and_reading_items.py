"""Items by themselves: names, scopes, values, threads and processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from inferscale_memory.errors import InvalidInputError, ScopeError
from inferscale_memory.items import Pattern, Put, Query, user_of
from inferscale_memory.items.namespaces import from_path, path_range, to_path
from inferscale_memory.items.store import ItemStore

ALICE = ("alice",)
ODD = [
    "日本語",
    "مرحبا",
    "e\u0301",
    "é",
    "👩‍👩‍👧",
    "a/b",
    "a%2Fb",
    "%",
    "/",
    " a ",
    "a\nb",
    "'; DROP TABLE items; --",
    "*",
    "_%_",
]
STORE = """
import sys
from inferscale_memory.items import Put
from inferscale_memory.items.store import ItemStore
from tests.unit.memory.toys import open_memory
with open_memory() as memory:
    items = ItemStore(memory)
    for n in range(int(sys.argv[2])):
        items.put([Put(("alice",), f"{sys.argv[1]} {n}", {"n": n}, (f"shared {n}", f"fact {n} of {sys.argv[1]}")),
                   Put(("alice",), "contested", {"by": sys.argv[1], "n": n}, (f"contested {n} {sys.argv[1]}",))])
"""


def test_every_text_is_a_key_and_a_label_of_its_own(items):
    names = [((label,), label) for label in ODD] + [(("x", label), label) for label in ODD]
    items.put([Put(namespace, key, {key: namespace[-1]}) for namespace, key in names])
    found = items.get(names)
    assert [(item.namespace, item.key) for item in found] == names
    assert [item.value for item in found] == [{key: namespace[-1]} for namespace, key in names]
    assert items.namespaces() == sorted({namespace for namespace, _ in names})
    assert [hit.item.namespace for hit in items.search(Query(("*",)))] == [("*",)]


@pytest.mark.parametrize("label", ODD)
def test_a_path_gives_its_namespace_back_and_holds_what_is_below(label):
    namespace = (label, "x", label)
    assert from_path(to_path(namespace)) == namespace
    first, end = path_range((label,))
    assert first <= to_path(namespace) < end
    assert not any(first <= to_path((other, "x")) < end for other in [*ODD, label + "a", label + "0"] if other != label)


def test_no_two_namespaces_are_the_same_user():
    namespaces = [("a", "b"), ("a/b",), ("a%2Fb",), ("a%252Fb",), ("a",), ("a", "b", "c"), ("a", "b/c")]
    users = [user_of(namespace)["user_id"] for namespace in namespaces]
    assert users[0] == "a/b"
    assert len(set(users)) == len(namespaces)


def test_a_scope_may_be_anybodys_and_several_namespaces_may_share_it(memory):
    items = ItemStore(memory, scope=lambda namespace: {"user_id": namespace[0], "agent_id": "helper"})
    items.put(
        [Put(("alice", kind), "k", {}, (text,)) for kind, text in [("food", "I like tea"), ("pets", "I have Rex")]]
    )
    assert {fact.text for fact in memory.list(user_id="alice").facts} == {"I like tea", "I have Rex"}
    assert [hit.item.namespace for hit in items.search(Query(("alice", "food"), "Rex"))] == [("alice", "food")]
    assert memory.list(user_id="alice", agent_id="other").facts == ()


def test_a_scope_that_changed_moves_the_facts_with_the_next_write(memory):
    ItemStore(memory).put([Put(ALICE, "k", {}, ("I like tea",))])
    ItemStore(memory, scope=lambda _: {"user_id": "carol"}).put([Put(ALICE, "k", {}, ("I like tea",))])
    assert memory.list(user_id="alice").facts == ()
    assert [fact.text for fact in memory.list(user_id="carol").facts] == ["I like tea"]


def test_tenants_do_not_see_each_others_items(memory):
    one, other = ItemStore(memory), ItemStore(memory, tenant_id="acme")
    one.put([Put(ALICE, "k", {"v": 1}, ("I like tea",))])
    assert other.get([(ALICE, "k")]) == [None]
    assert other.search(Query((), "tea")) == other.namespaces() == []
    other.put([Put(ALICE, "k", None)])
    assert one.get([(ALICE, "k")])[0].value == {"v": 1}


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        ((), "namespace is empty"),
        ("alice", "must be a tuple"),
        (("a", ""), "non-empty strings"),
        ((1,), "non-empty strings"),
        ((" ",), "user_id is blank"),
        (("a\ud800",), "lone surrogate"),
        (("x" * 300,), "user_id of 300 characters, at most 256"),
        (("/" * 200,), "is 601 characters long"),
    ],
)
def test_a_namespace_that_cannot_be_kept_is_refused(items, namespace, reason):
    with pytest.raises(InvalidInputError, match=reason):
        items.put([Put(namespace, "k", {})])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "is a list; want a dict"),
        ({"a": object()}, "JSON"),
        ({"a": float("nan")}, "JSON"),
        ({"a": "\ud800"}, "JSON"),
    ],
)
def test_a_value_that_is_no_json_object_is_refused_and_nothing_of_the_call_is_written(items, value, reason):
    with pytest.raises(InvalidInputError, match=reason):
        items.put([Put(ALICE, "good", {"v": 1}), Put(ALICE, "bad", value)])
    assert items.search(Query(())) == []


@pytest.mark.parametrize("key", [None, 7, "a\0b", "a\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(items, key):
    with pytest.raises(InvalidInputError, match="cannot be kept"):
        items.put([Put(ALICE, key, {})])


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (lambda _: {"user_id": " "}, ScopeError),
        (lambda _: {"tenant_id": "x"}, InvalidInputError),
        (lambda _: None, InvalidInputError),
    ],
)
def test_a_scope_rule_that_names_nobody_is_refused(memory, rule, error):
    with pytest.raises(error, match=r"blank|want a dict"):
        ItemStore(memory, scope=rule).put([Put(ALICE, "k", {})])


def test_a_pattern_of_another_kind_is_refused():
    with pytest.raises(InvalidInputError, match="Unsupported match type: 'infix'"):
        Pattern("infix", ("a",))


@pytest.mark.parametrize("wanted", [["kind"], {"price": {"$gt": 1, "plain": 2}}, {"a": {"b": [{"$near": 1}]}}])
def test_a_filter_that_cannot_be_is_refused_even_where_there_is_nothing_to_filter(items, wanted):
    with pytest.raises(InvalidInputError, match=r"must be a mapping|Unsupported operator"):
        items.search(Query((), filter=wanted))


@pytest.mark.parametrize(("wanted", "found"), [({"$gt": "2024-02"}, ["b"]), ({"$lt": 5}, []), ({"$gte": None}, [])])
def test_what_cannot_be_compared_does_not_match(items, wanted, found):
    items.put([Put(ALICE, "a", {"day": "2024-01-31"}), Put(ALICE, "b", {"day": "2024-02-01"}), Put(ALICE, "c", {})])
    assert [hit.item.key for hit in items.search(Query((), filter={"day": wanted}))] == found


def test_pages_of_ranked_and_unranked_items_never_repeat_one(items):
    items.put([Put(ALICE, f"{n}", {}, (f"tea {n}",) if n % 2 else ()) for n in range(9)])
    pages = [items.search(Query(ALICE, "tea", limit=2, offset=offset)) for offset in range(0, 10, 2)]
    assert sorted(hit.item.key for page in pages for hit in page) == [f"{n}" for n in range(9)]


def test_a_page_larger_than_any_database_can_count_to_is_everything(items):
    items.put([Put(ALICE, "one", {})])
    assert [hit.item.key for hit in items.search(Query(ALICE, limit=2**70))] == ["one"]
    assert items.search(Query(ALICE, offset=2**70)) == []


def test_facts_that_say_nearly_the_same_do_not_hide_an_item(items):
    items.put([Put(ALICE, f"{n}", {}, (f"{'!' * n} I like tea",)) for n in range(5)])
    hits = items.search(Query(ALICE, "I like tea"))
    assert [hit.item.key for hit in hits] == ["0", "1", "2", "3", "4"]


def test_a_handle_names_the_facts_of_the_best_items_below_a_prefix(items, memory):
    memory.add("A dog that no item told of.", user_id="alice")
    items.put(
        [Put(ALICE, "dog", {"kind": "pet"}, ("My dog is called Rex.", "I am old.")), Put(ALICE, "tea", {}, ("Tea.",))]
    )
    items.put([Put(ALICE, "hound", {"kind": "pet"}, ("My dog is called Rex.",)), Put(ALICE, "quiet", {})])
    handle = items.recall(ALICE, "what is my dog called", 3)
    assert [hit.fact.text for hit in handle.facts] == ["My dog is called Rex.", "Tea."]
    assert [one.fact.text for one in memory.explain(handle, user_id="alice").facts] == ["Tea.", "My dog is called Rex."]
    assert [hit.fact.text for hit in items.recall(ALICE, "tea", filter={"kind": "pet"}).facts] == [
        "My dog is called Rex."
    ]
    assert items.recall(("nobody",), "tea").facts == ()


def test_a_handle_over_several_scopes_is_refused(items):
    items.put([Put(ALICE, "k", {}, ("Tea.",)), Put(("alice", "work"), "k", {}, ("Tea.",))])
    with pytest.raises(InvalidInputError, match=r"items of 2 scopes.*longer prefix"):
        items.recall(ALICE, "tea")
    assert len(items.recall(("alice", "work"), "tea").facts) == 1


@pytest.mark.parametrize("arguments", [(" ",), ("tea", 0), ("tea", 10_001)])
def test_a_recall_out_of_range_is_refused(items, arguments):
    with pytest.raises(InvalidInputError, match=r"is blank|k is"):
        items.recall(ALICE, *arguments)


def test_eight_threads_and_two_processes_writing_lose_nothing(memory, items, opened, started):
    processes = [started(STORE, name, "4") for name in ("first", "second")]

    def write(name):
        for n in range(4):
            items.put(
                [
                    Put(ALICE, f"{name} {n}", {"n": n}, (f"shared {n}", f"fact {n} of {name}")),
                    Put(ALICE, "contested", {"by": name, "n": n}, (f"contested {n} {name}",)),
                ]
            )

    names = [f"thread {n}" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, names))
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0]
    writers = [*names, "first", "second"]
    memory.close()
    again = opened()
    found = ItemStore(again).search(Query(ALICE, limit=1000))
    assert {hit.item.key for hit in found} == {"contested", *(f"{name} {n}" for name in writers for n in range(4))}
    (last,) = (hit.item.value for hit in found if hit.item.key == "contested")
    wanted = {f"shared {n}" for n in range(4)} | {f"fact {n} of {name}" for name in writers for n in range(4)}
    wanted.add(f"contested {last['n']} {last['by']}")
    assert sorted(fact.text for fact in again.list(limit=1000, user_id="alice").facts) == sorted(wanted)


def test_a_text_of_a_megabyte_is_kept(items):
    items.put([Put(ALICE, "k", {"text": "é" * 1_000_000})])
    assert items.get([(ALICE, "k")])[0].value["text"] == "é" * 1_000_000
