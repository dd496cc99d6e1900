"""One script for langgraph's InMemoryStore and ours: what the first does, the second does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)

ALICE = ("users", "alice")


def keys(items):
    return [item.key for item in items]


def test_what_was_put_is_got(store):
    store.put(ALICE, "prefs", {"theme": "dark", "nested": {"list": [1, 2.5, None, True]}})
    item = store.get(ALICE, "prefs")
    assert (item.namespace, item.key) == (ALICE, "prefs")
    assert item.value == {"theme": "dark", "nested": {"list": [1, 2.5, None, True]}}
    assert store.get(ALICE, "other") is None
    assert store.get(("users",), "prefs") is None


def test_times_are_aware_and_move_on_when_an_item_is_overwritten(store):
    before = datetime.now(UTC)
    store.put(ALICE, "k", {"v": 1})
    first = store.get(ALICE, "k")
    store.put(ALICE, "k", {"v": 2})
    second = store.get(ALICE, "k")
    assert before - timedelta(seconds=1) <= first.created_at <= first.updated_at <= datetime.now(UTC)
    assert second.created_at <= second.updated_at
    assert first.updated_at < second.updated_at
    assert second.value == {"v": 2}


def test_a_key_is_made_a_text(store):
    store.put(ALICE, 7, {"v": 1})
    assert store.get(ALICE, "7").value == store.get(ALICE, 7).value == {"v": 1}


def test_the_empty_value_and_the_empty_key_are_kept(store):
    store.put(ALICE, "", {})
    assert store.get(ALICE, "").value == {}
    assert keys(store.search(ALICE)) == [""]


def test_deleting_removes_the_item_and_deleting_nothing_is_fine(store):
    store.put(ALICE, "k", {"text": "I like tea"})
    store.delete(ALICE, "k")
    store.delete(ALICE, "k")
    store.delete(("no", "body"), "k")
    assert store.get(ALICE, "k") is None
    assert store.search(ALICE) == store.search(ALICE, query="tea") == []


def test_putting_none_in_a_batch_deletes(store):
    store.put(ALICE, "k", {"v": 1})
    assert store.batch([PutOp(ALICE, "k", None)]) == [None]
    assert store.get(ALICE, "k") is None


def test_without_a_question_items_come_in_the_order_of_writing_namespace_by_namespace(store):
    for namespace, key in [(("a",), "1"), (("a", "b"), "2"), (("c",), "3"), (("a",), "4"), (("a", "b"), "0")]:
        store.put(namespace, key, {"n": key})
    store.put(("a",), "1", {"n": "again"})
    assert keys(store.search(("a",))) == ["1", "4", "2", "0"]
    assert keys(store.search(())) == ["1", "4", "2", "0", "3"]
    assert [item.score for item in store.search(("a",))] == [None] * 4
    assert all(isinstance(item, SearchItem) for item in store.search(()))


def test_a_prefix_is_made_of_whole_labels(store):
    for namespace in [("ab",), ("a", "b"), ("a",), ("a/b",), ("a%",), ("A",)]:
        store.put(namespace, "k", {"v": 1})
    assert {item.namespace for item in store.search(("a",))} == {("a",), ("a", "b")}
    assert {item.namespace for item in store.search(("a/b",))} == {("a/b",)}
    assert store.search(("b",)) == []


@pytest.mark.parametrize("query", [None, "number"])
def test_pages_make_up_the_whole_and_the_default_is_ten(store, query):
    for n in range(13):
        store.put(ALICE, f"{n}", {"text": f"number {'x ' * n}"})
    whole = keys(store.search(ALICE, query=query, limit=100))
    assert len(whole) == 13
    pages = [keys(store.search(ALICE, query=query, limit=5, offset=offset)) for offset in (0, 5, 10, 15)]
    assert [len(page) for page in pages] == [5, 5, 3, 0]
    assert [key for page in pages for key in page] == whole
    assert keys(store.search(ALICE, query=query)) == whole[:10]
    assert store.search(ALICE, query=query, limit=0) == []


FILTERS = [
    ({"kind": "tea"}, "a"),
    ({"kind": {"$eq": "tea"}}, "a"),
    ({"kind": {"$ne": "tea"}}, "bc"),
    ({"price": {"$gt": 2}}, "bc"),
    ({"price": {"$gte": 2, "$lt": 2.5}}, "a"),
    ({"price": {"$lte": "2.5"}}, "ab"),
    ({"kind": "milk", "price": 9}, "c"),
    ({"kind": "milk", "price": 8}, ""),
    ({"tags": ["x", "y"]}, "a"),
    ({"tags": ["x"]}, "b"),
    ({"where": {"city": "Graz"}}, "a"),
    ({"where": {"city": {"$ne": "Graz"}}}, "b"),
    ({"missing": None}, "abc"),
    ({"missing": 1}, ""),
    ({}, "abc"),
]


@pytest.mark.parametrize(("wanted", "found"), FILTERS, ids=[str(wanted) for wanted, _ in FILTERS])
def test_filters(store, wanted, found):
    store.put(ALICE, "a", {"kind": "tea", "price": 2, "tags": ["x", "y"], "where": {"city": "Graz", "zip": 8010}})
    store.put(ALICE, "b", {"kind": "coffee", "price": 2.5, "tags": ["x"], "where": {"city": "Linz"}})
    store.put(ALICE, "c", {"kind": "milk", "price": 9})
    assert "".join(keys(store.search(ALICE, filter=wanted))) == found
    assert set(keys(store.search(ALICE, filter=wanted, query="tea"))) == set(found)
    assert len(store.search(ALICE, filter=wanted, limit=1)) == min(1, len(found))


def test_an_unknown_operator_is_an_error(store):
    store.put(ALICE, "a", {"price": 2})
    with pytest.raises(ValueError, match="Unsupported operator"):
        store.search(ALICE, filter={"price": {"$near": 2}})


def test_a_question_ranks_by_meaning_across_namespaces(make_store):
    store = make_store(["text"])
    store.put(("alice",), "tea", {"text": "Alice drinks green tea"})
    store.put(("alice", "pets"), "dog", {"text": "the dog is called Rex"})
    store.put(("bob",), "dog", {"text": "a dog called Fido barks at the dog next door"})
    hits = store.search(("alice",), query="what is the dog called")
    assert [(hit.namespace, hit.key) for hit in hits] == [(("alice", "pets"), "dog"), (("alice",), "tea")]
    assert hits[0].score > hits[1].score
    assert {hit.namespace[0] for hit in store.search((), query="dog")} == {"alice", "bob"}


def test_scores_are_cosines(make_store):
    store = make_store(["text"])
    store.put(ALICE, "same", {"text": "green tea"})
    store.put(ALICE, "other", {"text": "a red dog"})
    same, other = store.search(ALICE, query="green tea")
    assert (same.key, other.key) == ("same", "other")
    assert same.score == pytest.approx(1.0, abs=1e-5)
    assert other.score == pytest.approx(0.0, abs=0.05)


def test_an_item_counts_by_its_best_field(make_store):
    store = make_store(["title", "parts[*].text", "missing"])
    store.put(ALICE, "book", {"title": "a novel", "parts": [{"text": "the whale"}, {"text": "the sea"}]})
    store.put(ALICE, "song", {"title": "the blue sea of love", "parts": []})
    hits = store.search(ALICE, query="the sea")
    assert keys(hits) == ["book", "song"]
    assert hits[0].score == pytest.approx(1.0, abs=1e-5)


def test_the_whole_value_is_indexed_where_no_field_is_named(store):
    store.put(ALICE, "a", {"b": 1, "a": "zebra"})
    store.put(ALICE, "b", {"c": "horse"})
    assert keys(store.search(ALICE, query="zebra")) == ["a", "b"]


def test_an_item_says_itself_what_it_is_indexed_by(make_store):
    store = make_store(["text"])
    store.put(ALICE, "by-note", {"text": "about cats", "note": "dog"}, index=["note"])
    store.put(ALICE, "by-text", {"text": "about cats", "note": "dog"})
    assert keys(store.search(ALICE, query="dog", limit=1)) == ["by-note"]
    assert keys(store.search(ALICE, query="about cats", limit=1)) == ["by-text"]


def test_items_without_an_index_follow_the_ranked_ones_without_a_score(make_store):
    store = make_store(["text"])
    store.put(ALICE, "hidden", {"text": "the dog is called Rex"}, index=False)
    store.put(ALICE, "ranked", {"text": "tea"})
    store.put(ALICE, "no-such-field", {"other": "dog"})
    hits = store.search(ALICE, query="dog Rex")
    assert keys(hits) == ["ranked", "hidden", "no-such-field"]
    assert [hit.score is None for hit in hits] == [False, True, True]
    assert store.get(ALICE, "hidden").value["text"] == "the dog is called Rex"


def test_overwriting_changes_what_an_item_is_found_by(make_store):
    store = make_store(["text"])
    store.put(ALICE, "k", {"text": "the dog Rex"})
    store.put(ALICE, "other", {"text": "a dog or a cat or a horse"})
    store.put(ALICE, "k", {"text": "green tea"})
    assert keys(store.search(ALICE, query="dog", limit=1)) == ["other"]
    assert keys(store.search(ALICE, query="tea", limit=1)) == ["k"]


NAMESPACES = [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f"), ("b",)]
LISTINGS = [
    ({}, sorted(NAMESPACES)),
    ({"prefix": ("a", "b"), "max_depth": 3}, [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f")]),
    ({"suffix": ("f",)}, [("a", "b", "f"), ("a", "c", "f")]),
    ({"prefix": ("a", "*", "f")}, [("a", "b", "f"), ("a", "c", "f")]),
    ({"suffix": ("d", "*")}, [("a", "b", "d", "e"), ("a", "b", "d", "i")]),
    ({"prefix": ("a",), "suffix": ("f",)}, [("a", "b", "f"), ("a", "c", "f")]),
    ({"prefix": ("*",), "max_depth": 1}, [("a",), ("b",)]),
    ({"limit": 2, "offset": 1}, sorted(NAMESPACES)[1:3]),
    ({"max_depth": 2, "limit": 2, "offset": 1}, [("a", "c"), ("b",)]),
    ({"prefix": ("z",)}, []),
    ({"prefix": ("a", "b", "c", "d")}, []),
]


@pytest.mark.parametrize(("wanted", "found"), LISTINGS, ids=[str(wanted) for wanted, _ in LISTINGS])
async def test_namespaces_are_listed(store, wanted, found):
    for namespace in reversed(NAMESPACES):
        store.put(namespace, "k", {"v": 1})
    assert store.list_namespaces(**wanted) == await store.alist_namespaces(**wanted) == found


def test_reads_of_a_batch_see_the_state_before_its_puts(store):
    store.put(ALICE, "old", {"v": 1})
    results = store.batch(
        [
            PutOp(ALICE, "old", {"v": 2}),
            PutOp(("users", "bob"), "new", {"v": 3}),
            GetOp(ALICE, "old"),
            SearchOp(("users",)),
            SearchOp(("users",), query="v"),
            ListNamespacesOp(match_conditions=(MatchCondition("prefix", ("users",)),)),
            GetOp(("users", "bob"), "new"),
        ]
    )
    assert results[:2] == [None, None]
    assert results[2].value == {"v": 1}
    assert [keys(hits) for hits in results[3:5]] == [["old"], ["old"]]
    assert results[5] == [ALICE]
    assert results[6] is None
    assert store.get(ALICE, "old").value == {"v": 2}
    assert store.get(("users", "bob"), "new").value == {"v": 3}


def test_of_several_puts_of_one_item_in_a_batch_the_last_counts(store):
    puts = [("k", {"v": 1}), ("gone", {"v": 1}), ("k", {"v": 2}), ("gone", None), ("back", None), ("back", {"v": 9})]
    assert store.batch([PutOp(ALICE, key, value) for key, value in puts]) == [None] * 6
    assert {item.key: item.value for item in store.search(ALICE)} == {"k": {"v": 2}, "back": {"v": 9}}


def test_an_empty_batch_is_fine(store):
    assert store.batch([]) == []


async def test_the_async_twins_do_the_same(make_store):
    store = make_store(["text"])
    await store.aput(ALICE, "dog", {"text": "the dog is called Rex", "n": 1})
    await store.aput(ALICE, "tea", {"text": "green tea", "n": 2})
    assert (await store.aget(ALICE, "dog")).value["n"] == 1
    assert keys(await store.asearch(ALICE, query="dog", limit=1)) == ["dog"]
    assert keys(await store.asearch(ALICE, filter={"n": {"$gt": 1}})) == ["tea"]
    assert keys((await store.abatch([SearchOp(ALICE), PutOp(ALICE, "z", {"n": 3})]))[0]) == ["dog", "tea"]
    await store.adelete(ALICE, "dog")
    assert keys(await store.asearch(ALICE, query="dog", filter={"n": 1})) == []


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        ((), "cannot be empty"),
        (("a.b",), "cannot contain periods"),
        (("a", ""), "cannot be empty"),
        ((1,), "must be strings"),
        (("langgraph",), "Root label"),
        (("a\0b",), "NUL"),
    ],
)
def test_a_namespace_that_cannot_be_is_refused(store, namespace, reason):
    with pytest.raises(InvalidNamespaceError, match=reason):
        store.put(namespace, "k", {"v": 1})


def test_an_operation_that_is_none_is_refused(store):
    with pytest.raises(ValueError, match="Unknown operation type"):
        store.batch(["get"])
