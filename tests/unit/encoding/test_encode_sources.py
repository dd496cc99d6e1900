from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from inferscale_memory.encoding._locomo import locomo_time
from inferscale_memory.encoding.sources import FORMATS, read_source
from inferscale_memory.errors import InvalidInputError
from tests.locomo import LOCOMO, needs_locomo


@pytest.fixture
def write(tmp_path):
    def write_one(content, name="source.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write_one


def lines(*entries) -> str:
    return "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)


def test_jsonl_facts_carry_scope_speaker_time_turns_and_metadata(write):
    entry = {
        "text": "Rex is a dog", "user_id": "alice", "session_id": 7, "speaker": "Alice", "turn_id": "t1",
        "time": "2024-05-08T13:56:00+02:00", "metadata": {"user_id": "mallory"}, "id": "own",
    }  # fmt: skip
    [item] = read_source(write(lines(entry)))
    assert (item.kind, item.text, item.speaker) == ("fact", "Rex is a dog", "Alice")
    assert (item.turn_ids, item.id) == (("t1",), "own")
    assert item.scope == {"user_id": "alice", "session_id": "7"}
    assert item.time == datetime(2024, 5, 8, 13, 56, tzinfo=timezone(timedelta(hours=2)))
    assert item.metadata == {"user_id": "mallory"}


def test_jsonl_messages_are_told_from_facts(write):
    source = read_source(write(lines({"role": "user", "content": "Hi"}, {"text": "a fact"})))
    assert [(item.kind, item.role) for item in source] == [("message", "user"), ("fact", None)]


def test_bad_lines_are_named_and_good_ones_kept(write):
    bad = [
        ("not json", "not JSON: Expecting value at column 1"),
        ("[1]", "wanted an object with 'text'"),
        ('{"text": " \\n"}', "the text is blank"),
        ('{"text": 5}', "the text is a int"),
        ('{"text": "a\\u0000b"}', "NUL"),
        ('{"text": "\\ud800"}', "lone surrogate"),
        ('{"text": "x", "time": "yesterday"}', "the time 'yesterday' is neither ISO 8601"),
        ('{"text": "x", "user_id": ["a"]}', "'user_id' is a list"),
        ('{"text": "x", "metadata": 3}', "'metadata' is a int"),
        ('{"text": "x", "turn_ids": "t"}', "'turn_ids' is not a list"),
        ("[" * 100_000, "not usable JSON: RecursionError"),
    ]
    source = read_source(write("\n".join(['{"text": "first"}', *(line for line, _ in bad), '{"text": "last"}'])))
    assert [item.text for item in source] == ["first", "last"]
    assert [error.line for error in source.errors] == list(range(2, 2 + len(bad)))
    for error, (_, reason) in zip(source.errors, bad, strict=True):
        assert reason in error.reason


def test_a_line_that_is_not_utf8_spoils_that_line_only(write):
    source = read_source(write(b'{"text": "one"}\n{"text": "\xff"}\n{"text": "two"}\n'))
    assert [item.text for item in source] == ["one", "two"]
    assert [error.line for error in source.errors] == [2]


def test_a_byte_order_mark_and_blank_lines_are_passed_over(write):
    source = read_source(write(b"\xef\xbb\xbf" + b'{"text": "one"}\n\n  \n{"text": "two"}\r\n'))
    assert [item.text for item in source] == ["one", "two"]
    assert source.errors == []


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1).filter(str.strip))
def test_any_text_is_read_as_it_was_written(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("texts") / "one.jsonl"
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [item.text for item in read_source(path)] == [text]


def test_the_same_file_gives_the_same_ids_and_equal_items_different_ones(write):
    path = write(lines(*[{"role": "user", "content": "ok"}] * 3))
    first, second = [[item.id for item in read_source(path)] for _ in range(2)]
    assert first == second
    assert len(set(first)) == 3


def test_a_file_that_has_grown_gives_its_old_items_their_old_ids(write):
    old = [item.id for item in read_source(write(lines({"text": "one"}, {"text": "two"})))]
    new = [item.id for item in read_source(write(lines({"text": "one"}, {"text": "two"}, {"text": "one"})))]
    assert new[:2] == old
    assert new[2] not in old


def test_a_second_pass_over_a_source_collects_its_errors_anew(write):
    source = read_source(write('{"text": "one"}\nbad\n'))
    assert [len(list(source)) for _ in range(2)] == [1, 1]
    assert len(source.errors) == 1


def test_langchain_histories_keep_what_people_and_models_said(write):
    history = [
        {"type": "system", "data": {"content": "You are helpful"}},
        {"type": "human", "data": {"content": "Ich heiße Zoë 🐕", "id": "m1", "name": "Zoë"}},
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "search"}]}},
        {"type": "tool", "data": {"content": "{}"}},
        {"type": "ai", "data": {"content": [{"type": "text", "text": "Hello"}, {"type": "image"}]}},
        {"type": "chat", "data": {"content": "Hi", "role": "user"}},
        {"type": "human", "data": {"content": None}},
        "nonsense",
    ]
    source = read_source(write(history))
    said = [(item.kind, item.role, item.speaker, item.text, item.turn_ids) for item in source]
    assert said == [
        ("message", "user", "Zoë", "Ich heiße Zoë 🐕", ("m1",)),
        ("message", "assistant", None, "Hello", ()),
        ("message", "user", None, "Hi", ()),
    ]
    assert [(e.line, e.reason) for e in source.errors] == [
        (7, "user message: the text is a NoneType, not a string"),
        (8, "wanted an object with 'type' and an object 'data'"),
    ]


def test_langchains_own_export_is_read(write):
    messages = pytest.importorskip("langchain_core.messages", reason="langchain-core is not installed")
    history = [messages.HumanMessage("I have a dog"), messages.AIMessage("Nice"), messages.SystemMessage("x")]
    source = read_source(write(messages.messages_to_dict(history)))
    assert [(item.role, item.text) for item in source] == [("user", "I have a dog"), ("assistant", "Nice")]
    assert source.errors == []


def test_llama_index_stores_give_each_key_as_session(write):
    store = {
        "store": {
            "chat 1": [
                {"role": "system", "content": "x"},
                {"role": "user", "blocks": [{"block_type": "text", "text": "I have a dog"}]},
                {"role": "assistant", "content": "Nice", "additional_kwargs": {"name": "Bot"}},
                {"role": "assistant", "blocks": [{"block_type": "tool_call", "tool_name": "f"}]},
            ],
            "chat 2": [{"role": "user", "content": " "}, 5],
        },
        "class_name": "SimpleChatStore",
    }
    source = read_source(write(store))
    assert [(i.scope, i.role, i.speaker, i.text) for i in source] == [
        ({"session_id": "chat 1"}, "user", None, "I have a dog"),
        ({"session_id": "chat 1"}, "assistant", "Bot", "Nice"),
    ]
    assert [(e.line, e.reason) for e in source.errors] == [
        (5, "user message: the text is blank"),
        (6, "'chat 2': a message is a int, not an object"),
    ]


def test_llama_indexes_own_export_is_read(write):
    storage = pytest.importorskip("llama_index.core.storage.chat_store", reason="llama-index-core is not installed")
    llms = pytest.importorskip("llama_index.core.llms")
    store = storage.SimpleChatStore()
    store.add_message("chat", llms.ChatMessage(role="user", content="I have a dog"))
    try:
        exported = store.model_dump_json()
    except PydanticSerializationError as error:  # llama-index-core 0.14.25 with pydantic 2.14: its own persist() fails
        pytest.xfail(f"llama-index cannot export its chat store here: {error}")
    source = read_source(write(exported))
    assert [(item.role, item.text, item.scope) for item in source] == [("user", "I have a dog", {"session_id": "chat"})]


CONVERSATION = {
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "I went hiking"},
        {"speaker": "Ben", "dia_id": "D1:2", "text": ""},
    ],
    "session_10_date_time": "soon",
    "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "Hi"}],
    "session_1_observation": {"Ann": [["Ann hikes.", ["D1:1", "D1:2"]], ["Ann walks.", "D1:1, D1:2"], [None]]},
    "session_2": "lost",
}


def test_locomo_gives_each_sessions_turns_then_its_observations_with_their_evidence(write):
    source = read_source(write(CONVERSATION))
    assert [(i.kind, i.speaker, i.text, i.turn_ids, i.metadata) for i in source] == [
        ("turn", "Ann", "I went hiking", ("D1:1",), {}),
        ("fact", "Ann", "Ann hikes.", ("D1:1", "D1:2"), {"session": 1}),
        ("fact", "Ann", "Ann walks.", ("D1:1", "D1:2"), {"session": 1}),
        ("turn", "Ben", "Hi", ("D10:1",), {}),
    ]
    assert [error.reason for error in source.errors] == [
        "session 1: turn D1:2: the text is blank",
        "session 1: observation of Ann: the text is a NoneType, not a string",
        "session 2: its turns are not a list",
        "session 10: no readable 'date_time'; its items have no time",
    ]


def test_a_locomo_conversation_is_one_memory_unless_its_sessions_are_to_be_kept_apart(write):
    path = write(CONVERSATION)
    assert [item.scope for item in read_source(path)] == [{}] * 4
    apart = [item.scope["session_id"] for item in read_source(path, by_session=True)]
    assert apart == ["session_1"] * 3 + ["session_10"]
    path = write([{"sample_id": name, "conversation": CONVERSATION} for name in ("a", "b")])
    assert [item.scope["session_id"] for item in read_source(path)] == ["a", "a", "b", "b"]
    assert {item.scope["session_id"] for item in read_source(path, by_session=True)} == {
        "a/session_1", "a/session_10", "b/session_1", "b/session_10",
    }  # fmt: skip


def test_locomo_conversations_of_one_file_do_not_share_turn_ids(write):
    one = {"sample_id": "conv-1", "conversation": CONVERSATION, "observation": CONVERSATION}
    other = {"sample_id": "conv-2", "conversation": CONVERSATION, "observation": CONVERSATION}
    items = list(read_source(write([one, other])))
    turns = [turn for item in items if item.kind == "turn" for turn in item.turn_ids]
    assert turns == ["conv-1/D1:1", "conv-1/D10:1", "conv-2/D1:1", "conv-2/D10:1"]
    assert items[1].turn_ids == ("conv-1/D1:1", "conv-1/D1:2")


def test_session_times_of_locomo_are_parsed():
    assert locomo_time("1:56 pm on 8 May, 2023") == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert locomo_time("12:09 am on 13 September, 2023") == datetime(2023, 9, 13, 0, 9, tzinfo=UTC)


@needs_locomo
def test_the_locomo_conversations_are_read_without_an_error():
    paths = sorted(LOCOMO.glob("conv-*.json"))
    assert paths
    for path in paths:
        source = read_source(path)
        items = list(source)
        turns = {turn for item in items if item.kind == "turn" for turn in item.turn_ids}
        facts = [item for item in items if item.kind == "fact"]
        assert (source.format, source.errors) == ("locomo", [])
        assert len(facts) > 100
        assert all(item.time for item in items)
        assert len({item.id for item in items}) == len(items)
        assert all(fact.turn_ids and turns.issuperset(fact.turn_ids) for fact in facts)


def test_the_format_is_told_from_the_content(write):
    assert [
        read_source(write(content)).format
        for content in (
            lines({"text": "a"}, {"text": "b"}),
            {"text": "one line"},
            CONVERSATION,
            [{"type": "human", "data": {"content": "a"}}],
            {"store": {}},
            "",
            "[" * 100_000,
        )
    ] == ["jsonl", "jsonl", "locomo", "langchain", "llama-index", "jsonl", "jsonl"]


def test_json_of_an_unknown_shape_is_refused_with_the_known_ones(write):
    with pytest.raises(InvalidInputError, match=r"cannot tell the format of this JSON dict\. Known are JSONL"):
        read_source(write({"hello": "world"}))


def test_a_format_that_does_not_fit_the_file_is_refused(write):
    with pytest.raises(InvalidInputError, match="does not look like the format 'locomo' but like 'llama-index'"):
        read_source(write({"store": {}}), "locomo")
    with pytest.raises(InvalidInputError, match="not one JSON document, which the format 'locomo' is; try 'jsonl'"):
        read_source(write("a\nb"), "locomo")


def test_an_unknown_format_or_file_is_refused(write, tmp_path):
    with pytest.raises(InvalidInputError, match=f"unknown format 'csv'; give one of {', '.join(FORMATS)}"):
        read_source(write(""), "csv")
    with pytest.raises(InvalidInputError, match="nothing is not a file"):
        read_source(tmp_path / "nothing")
    with pytest.raises(InvalidInputError, match="is not UTF-8 text"):
        read_source(write(b"\xff\xfe\x00"))
