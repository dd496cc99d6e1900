"""Bad input: what is refused, by which name, and that the good beside it is kept."""

from __future__ import annotations

import shutil

import pytest

from inferscale_memory import InvalidInputError, ScopeError
from inferscale_memory.text import MAX_FACT_CHARS
from tests.unit.memory.toys import open_memory

BAD = {
    "": "blank",
    "   ": "blank",
    "\n\t\u200b": "blank",
    "a\0b": "NUL character at position 1",
    "half of an emoji: \ud83d": "lone surrogate",
    "x" * (MAX_FACT_CHARS + 1): "over-long",
    "y" * 1_000_000: "over-long: 1000000 characters",
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory, empty_database):
    """A memory for calls that are refused; whatever they were, nothing is in it at the end."""
    home = tmp_path_factory.mktemp("home")
    (home / "memory").mkdir(mode=0o700)
    shutil.copy(empty_database, home / "memory" / "facts.db")
    with open_memory(home=home) as memory:
        yield memory
        assert memory.store.last_change() == 0


def texts(memory, **scope):
    return [fact.text for fact in memory.list(**scope).facts]


def test_bad_texts_are_named_and_the_good_ones_around_them_are_kept(memory):
    items = [text for n, bad in enumerate(BAD) for text in (bad, f"good number {n}")] + [None, 3, b"bytes"]
    result = memory.add(items, user_id="alice")
    assert [error.index for error in result.errors] == [*range(0, 2 * len(BAD), 2), 14, 15, 16]
    for error, reason in zip(result.errors, BAD.values(), strict=False):
        assert reason in error.reason
        assert len(error.preview) < 80
    assert texts(memory, user_id="alice") == items[1 : 2 * len(BAD) : 2]
    assert [hit.fact.text for hit in memory.search("number 4", 1, user_id="alice")] == ["good number 4"]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_text_alone_is_an_item_error_and_saves_nothing(empty, bad):
    result = empty.add(bad, user_id="alice")
    assert (result.facts, result.created, [error.index for error in result.errors]) == ((), (), [0])
    assert texts(empty, user_id="alice") == []


def test_bad_messages_are_named_and_the_good_ones_are_kept(memory):
    result = memory.add(
        [
            {"role": "user", "content": "My dog is called Rex."},
            {"role": "user", "content": "\0"},
            {"content": "no role"},
            {"role": "user"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant", "content": "Hello Rex!"},
        ],
        user_id="alice",
    )
    assert [error.index for error in result.errors] == [1, 2, 3]
    assert texts(memory, user_id="alice") == ["User: My dog is called Rex.", "Assistant: Hello Rex!"]


@pytest.mark.parametrize("bad", ["\ud800", "\0", "x" * 300])
def test_a_message_whose_id_cannot_be_kept_is_named_and_the_good_ones_are_kept(memory, bad):
    messages = [
        {"role": "user", "content": "My dog is called Rex.", "id": "one"},
        {"role": "user", "content": "My cat is called Tom.", "id": bad},
    ]
    result = memory.add(messages, user_id="alice")
    assert [error.index for error in result.errors] == [1]
    assert texts(memory, user_id="alice") == ["User: My dog is called Rex."]


@pytest.mark.parametrize("content", [None, 3, b"bytes", [], (), {"a set"}, iter(["one"])])
def test_what_is_neither_text_nor_messages_is_refused_whole(empty, content):
    with pytest.raises(InvalidInputError, match="remember"):
        empty.add(content, user_id="alice")


CALLS = {
    "add": lambda m, **s: m.add("fact", **s),
    "search": lambda m, **s: m.search("query", **s),
    "recall": lambda m, **s: m.recall("query", **s),
    "get": lambda m, **s: m.get("f", **s),
    "list": lambda m, **s: m.list(**s),
    "update": lambda m, **s: m.update("f", text="t", **s),
    "delete": lambda m, **s: m.delete("f", **s),
    "delete_all": lambda m, **s: m.delete_all(**s),
    "history": lambda m, **s: m.history("f", **s),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        ({}, "no scope"),
        ({"user_id": None}, "no scope"),
        ({"tenant_id": "t"}, "no scope"),
        ({"user_id": "alice", "tenant_id": None}, "tenant_id must be a string"),
        ({"user_id": ""}, "user_id is blank"),
        ({"user_id": "alice", "agent_id": "  "}, "agent_id is blank"),
        ({"user_id": "alice", "session_id": 7}, "session_id must be a string, got int"),
        ({"user_id": "a\0b"}, "control character"),
        ({"user_id": "\ud800"}, "lone surrogate"),
        ({"user_id": "x" * 300}, "300 characters"),
    ],
)
def test_a_missing_or_unusable_scope_is_refused_by_every_method(empty, name, scope, reason):
    with pytest.raises(ScopeError, match=reason):
        CALLS[name](empty, **scope)


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_keyword_is_refused_by_every_method(empty, name):
    with pytest.raises(TypeError, match="unexpected keyword userid; scopes are user_id, agent_id"):
        CALLS[name](empty, user_id="alice", userid="bob")


def test_explain_and_flush_do_not_take_a_blank_scope_for_none(memory):
    handle = memory.recall("query", user_id="alice")
    for scope in ({"user_id": None}, {"user_id": " "}):
        with pytest.raises(ScopeError):
            memory.explain(handle, **scope)
        with pytest.raises(ScopeError):
            memory.flush(**scope)


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "3", float("nan"), 10_001])
def test_a_k_that_is_no_number_of_facts_is_refused(empty, k):
    for find in (empty.search, empty.recall):
        with pytest.raises(InvalidInputError, match=r"k is .*; wanted the number of facts, 1 to 10,000"):
            find("fact", k, user_id="alice")


def test_a_k_larger_than_what_exists_gives_what_exists(memory):
    memory.add(["one fact", "two facts"], user_id="alice")
    assert len(memory.search("fact", 10_000, user_id="alice")) == 2
    assert len(memory.recall("fact", 10_000, user_id="alice").facts) == 2
    assert memory.recall("fact", 3, user_id="bob").facts == ()


@pytest.mark.parametrize("refresh", [-1, True, 1.0, "1"])
def test_a_refresh_that_is_no_number_of_facts_is_refused(empty, refresh):
    with pytest.raises(InvalidInputError, match=r"refresh is .*; wanted a number of facts, 0 to k"):
        empty.recall("fact", 1, refresh, user_id="alice")


def test_a_refresh_larger_than_k_refreshes_every_fact(memory):
    memory.add(["one fact", "two facts"], user_id="alice")
    explained = memory.explain(memory.recall("fact", 2, 99, user_id="alice"))
    assert explained.refresh == 2
    assert [fact.refreshed for fact in explained.facts] == [True, True]


@pytest.mark.parametrize("threshold", [-1.1, 2, float("nan"), "0.5", True + 1j])
def test_a_threshold_that_is_no_cosine_is_refused(empty, threshold):
    with pytest.raises(InvalidInputError, match="want a cosine"):
        empty.search("fact", threshold=threshold, user_id="alice")


@pytest.mark.parametrize("query", ["", "  \n", None, 3, ["question"], "\ud800"])
def test_a_query_without_words_is_refused(empty, query):
    with pytest.raises(InvalidInputError, match="query"):
        empty.recall(query, user_id="alice")


@pytest.mark.parametrize("limit", [0, -1, 1001, 2.5, "5", True])
def test_a_limit_that_is_no_page_is_refused(empty, limit):
    with pytest.raises(InvalidInputError, match="limit must be 1 to 1000"):
        empty.list(limit=limit, user_id="alice")


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5"])
def test_a_timeout_that_is_no_time_is_refused(empty, timeout):
    with pytest.raises(InvalidInputError, match="wanted seconds, 0 or more"):
        empty.flush(timeout)


@pytest.mark.parametrize(
    "metadata", ["text", {"f": object()}, {"x": float("nan")}, {"s": "\ud800"}, {"l": "x" * 99_999}]
)
def test_metadata_that_cannot_be_kept_is_refused_whole(empty, metadata):
    with pytest.raises(InvalidInputError, match="metadata"):
        empty.add(["one", "two"], metadata=metadata, user_id="alice")
    assert texts(empty, user_id="alice") == []


def test_metadata_cannot_change_the_owner(memory):
    stolen = {"user_id": "bob", "tenant_id": "other", "scope": "bob", "id": "x", "seq": 0}
    (fact,) = memory.add("Alice's own.", metadata=stolen, user_id="alice").facts
    updated = memory.update(fact.id, metadata={**stolen, "n": 1}, user_id="alice")
    assert (updated.scope, updated.id, updated.metadata["user_id"]) == (fact.scope, fact.id, "bob")
    assert memory.search("Alice's own.", user_id="bob") == []
    assert texts(memory, user_id="bob") == []
    assert texts(memory, user_id="alice") == ["Alice's own."]


@pytest.mark.parametrize("key", ["", " ", 3, "\ud800", "a\0b"])
def test_an_idempotency_key_that_cannot_be_kept_is_refused(empty, key):
    with pytest.raises(InvalidInputError, match="idempotency_key"):
        empty.add("fact", idempotency_key=key, user_id="alice")


@pytest.mark.parametrize("text", ["", " ", "a\0", "\ud800", "z" * (MAX_FACT_CHARS + 1), 5])
def test_an_update_to_a_bad_text_is_refused_and_changes_nothing(memory, text):
    (fact,) = memory.add("good", user_id="alice").facts
    with pytest.raises(InvalidInputError, match="fact text"):
        memory.update(fact.id, text=text, user_id="alice")
    assert memory.get(fact.id, user_id="alice") == fact


@pytest.mark.parametrize("fact_id", ["", "nope", "\0", "\ud800", "x" * 100_000, None, 3, "' OR 1=1 --"])
def test_an_id_that_names_no_fact_is_not_found_whatever_it_is(memory, fact_id):
    memory.add("fact", user_id="alice")
    for name in ("get", "delete", "history"):
        with pytest.raises(KeyError, match="no fact"):
            getattr(memory, name)(fact_id, user_id="alice")
    with pytest.raises(KeyError, match="no fact"):
        memory.update(fact_id, text="t", user_id="alice")


def test_a_fact_of_another_user_is_answered_like_one_that_does_not_exist(memory):
    (fact,) = memory.add("Alice's secret.", user_id="alice").facts
    said = []
    for fact_id in (fact.id, "0" * 32):
        with pytest.raises(KeyError) as caught:
            memory.delete(fact_id, user_id="bob")
        said.append(str(caught.value).replace(fact_id, "ID"))
    assert said[0] == said[1]
    assert memory.get(fact.id, user_id="alice") == fact
