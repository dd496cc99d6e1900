"""From what an application hands in to turns and facts."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts import NewFact, NewTurn, VerbatimExtractor, coerce_items
from inferscale_memory.handles import find_handles

HANDLE = "⟦kv:AbcXyz⟧"


def user(content, **fields):
    return {"role": "user", "content": content, **fields}


def test_a_text_is_one_fact_as_it_stands():
    turns, facts = coerce_items("  I like {tea}\nand %s ")
    assert turns == []
    assert facts == [NewFact("  I like {tea}\nand %s ", index=0)]


def test_each_text_of_a_list_is_a_fact_with_its_place():
    assert [(fact.text, fact.index) for fact in coerce_items(["a", "b"]).facts] == [("a", 0), ("b", 1)]


def test_a_message_is_a_turn_and_a_fact_with_its_speaker():
    (turn,), (fact,) = coerce_items([user("I live in Graz", id="m1")])
    assert (turn.role, turn.text, turn.speaker, turn.id) == ("user", "I live in Graz", "User", "m1")
    assert (fact.text, fact.speaker, fact.turn_ids) == ("User: I live in Graz", "User", ("m1",))


def test_a_name_speaks_in_place_of_the_role():
    facts = coerce_items([user("hi", name="Caroline"), {"role": "assistant", "content": "hello"}]).facts
    assert [fact.text for fact in facts] == ["Caroline: hi", "Assistant: hello"]


@pytest.mark.parametrize(("name", "head"), [(" ", "User"), ("Ann\nLee", "Ann Lee"), ("明", "明")])
def test_a_speaker_is_one_line(name, head):
    assert coerce_items(user("hi", name=name)).facts[0].text == f"{head}: hi"


@pytest.mark.parametrize("role", ["system", "developer", "tool", "function"])
def test_other_roles_are_kept_as_turns_only(role):
    turns, facts = coerce_items([{"role": role, "content": "text"}])
    assert [turn.role for turn in turns] == [role]
    assert facts == []


@pytest.mark.parametrize(("role", "meant"), [("human", "user"), ("ai", "assistant"), (" User ", "user")])
def test_roles_by_other_names_are_the_same_roles(role, meant):
    turns, facts = coerce_items({"role": role, "content": "hi"})
    assert turns[0].role == meant
    assert facts[0].speaker == meant.capitalize()


@pytest.mark.parametrize(
    "content",
    [None, [], [{"type": "image_url", "image_url": {"url": "x"}}], HANDLE, [{"type": "text", "text": HANDLE}]],
)
def test_a_message_that_says_nothing_in_words_is_passed_over_without_an_error(content):
    assert coerce_items([{"role": "assistant", "content": content, "tool_calls": []}]) == ([], [])


def test_text_parts_are_joined_and_other_parts_left_out():
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {}},
        "here",
        {"type": "text", "text": "!"},
    ]
    assert coerce_items(user(parts)).turns[0].text == "look\nhere\n!"


def test_handles_are_removed_before_saving():
    turns, facts = coerce_items([user(f"before {HANDLE}after"), f"plain {HANDLE}text"])
    assert turns[0].text == "before after"
    assert [fact.text for fact in facts] == ["User: before after", "plain text"]


@given(st.lists(st.sampled_from(["⟦kv:", "Ab", "⟧", HANDLE, "⟦kv:⟦kv:Ab⟧", " "]), min_size=1).map("".join))
def test_no_crafted_text_leaves_a_handle_in_a_fact(text):
    turns, facts = coerce_items([user(text), text])
    assert not [item for item in [*turns, *facts] if find_handles(item.text) and getattr(item, "refusal", None) is None]


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1.5, datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)),
        ("2024-05-01T12:00:00+02:00", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        (datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))), datetime(2024, 5, 1, 10, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_timestamp_is_when_the_turn_and_the_fact_were_said(timestamp, at):
    (turn,), (fact,) = coerce_items(user("hi", timestamp=timestamp))
    assert (turn.created_at, fact.created_at) == (at, at)


BAD = [
    ({"content": "no role"}, "'role'"),
    ({"role": 3, "content": "x"}, "'role'"),
    ({"role": "user"}, "'content'"),
    (user(42), "got int"),
    (user([42]), "content part"),
    (user([{"type": "text", "text": None}]), "text part"),
    (user(""), "blank"),
    (user("a\0"), "NUL"),
    (user("\ud800"), "surrogate"),
    (user("x" * 2**20), "over-long: 1048576"),
    (user("x", name=7), "'name'"),
    (user("x", id=" "), "'id'"),
    (user("x", id=True), "'id'"),
    (user("x", timestamp="yesterday"), "'timestamp'"),
    (user("x", timestamp=1e300), "'timestamp'"),
    (user("x", timestamp=float("nan")), "'timestamp'"),
    (user("x", timestamp="0001-01-01T00:00:00+10:00"), "'timestamp'"),
    (None, "got NoneType"),
    (3.5, "got float"),
]


def test_bad_messages_among_good_ones_are_named_and_the_good_ones_saved(store, alice):
    content = ["first", *(item for item, _ in BAD), user("last")]
    turns, facts = coerce_items(content)
    result = store.add(facts, alice, turns=turns)
    assert [fact.text for fact in result.facts] == ["first", "User: last"]
    assert [error.index for error in result.errors] == list(range(1, len(BAD) + 1))
    for error, (_, reason) in zip(result.errors, BAD, strict=True):
        assert reason in error.reason


@pytest.mark.parametrize("content", [None, 3, b"bytes", {"a set"}, iter(["x"])])
def test_what_is_neither_text_nor_messages_is_refused_by_type(content):
    with pytest.raises(InvalidInputError, match=f"cannot remember {type(content).__name__}"):
        coerce_items(content)


def test_an_empty_list_is_refused():
    with pytest.raises(InvalidInputError, match="list is empty"):
        coerce_items([])


def test_an_extractor_sees_the_sound_turns_of_every_role_and_decides_what_is_remembered():
    class Summary:
        def extract(self, turns):
            return [NewFact(f"{len(turns)} turns", turn_ids=tuple(turn.id for turn in turns), metadata={"own": 1})]

    messages = [{"role": "system", "content": "s"}, user(""), user("b")]
    turns, facts = coerce_items(messages, extractor=Summary(), metadata={"given": 1})
    assert [fact.text for fact in facts if fact.refusal is None] == ["2 turns"]
    assert facts[0].metadata == {"own": 1}
    assert len(turns) == 2


def test_metadata_of_the_call_goes_to_every_fact():
    facts = coerce_items(["a", user("b")], metadata={"topic": "t"}).facts
    assert [fact.metadata for fact in facts] == [{"topic": "t"}] * 2


def test_the_verbatim_extractor_names_its_sources_in_order():
    turns = [NewTurn("user", "a", id="1"), NewTurn("tool", "b", id="2"), NewTurn("assistant", "c", id="3")]
    assert [fact.turn_ids for fact in VerbatimExtractor().extract(turns)] == [("1",), ("3",)]
