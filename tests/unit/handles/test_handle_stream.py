"""Handles are taken out of what a model says, wherever a stream cuts them."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.handles import find_handles, strip_handles
from inferscale_memory.handles.stream import AnswerFilter, HandleFilter, without_handles

TOKEN = "⟦kv:AbcdefGhij⟧"


def filtered(pieces: list[str]) -> str:
    held = HandleFilter()
    return "".join([*map(held.feed, pieces), held.finish()])


@given(st.lists(st.sampled_from(["⟦", "k", "v", ":", "abc", "⟧", " ", TOKEN, "⟦kv:", "[x]"]), max_size=12), st.data())
def test_however_a_text_is_cut_the_same_comes_out_and_no_handle_is_in_it(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out = filtered(pieces)
    assert find_handles(out) == []
    assert TOKEN not in out
    if strip_handles(text) == text:
        assert out == text


@pytest.mark.parametrize(
    "text",
    ["⟦kv:k⟦kv:⟧⟧", "⟦⟦kv:x⟧kv:abcdefgh⟧", "⟦k⟦kv:x⟧v:abcdefgh⟧", "⟦kv:ab⟦kv:x⟧cdefgh⟧", "⟦⟦⟦kv:a⟧kv:b⟧kv:c⟧"],
)
def test_what_is_left_when_a_handle_inside_a_handle_is_removed_is_none_either(text: str) -> None:
    for cut in range(len(text) + 1):
        assert find_handles(filtered([text[:cut], text[cut:]])) == []
    assert find_handles(filtered(list(text))) == []


def test_text_without_a_handle_is_given_out_at_once() -> None:
    held = HandleFilter()
    assert [held.feed(piece) for piece in ("a", "⟦b", "⟧ c")] == ["a", "⟦b", "⟧ c"]
    assert held.finish() == ""


def test_the_beginning_of_a_handle_waits_until_it_is_decided() -> None:
    held = HandleFilter()
    assert held.feed("x ⟦k") == "x "
    assert held.feed("ing") == "⟦king"
    assert held.feed("⟦kv:ab") == ""
    assert held.feed("cd⟧ y") == " y"


def test_a_handle_that_never_ends_is_dropped_and_a_lone_bracket_is_not() -> None:
    assert filtered(["a ⟦kv:abc"]) == "a "
    assert filtered(["a ⟦"]) == "a ⟦"


def test_texts_and_tool_arguments_of_a_whole_answer_lose_their_handles() -> None:
    call = {"function": {"name": "f", "arguments": f'{{"x": "{TOKEN}1"}}'}}
    answer = {
        "choices": [{"message": {"content": f"a{TOKEN}", "reasoning": TOKEN, "tool_calls": [call]}}, {"text": TOKEN}]
    }
    without_handles(answer)
    said = answer["choices"][0]["message"]
    assert (said["content"], said["reasoning"], answer["choices"][1]["text"]) == ("a", "", "")
    assert said["tool_calls"][0]["function"]["arguments"] == '{"x": "1"}'


def test_an_answer_without_handles_is_left_as_it_is() -> None:
    answer = {"choices": [{"message": {"content": "⟦not one⟧", "tool_calls": None}}]}
    assert without_handles(copy.deepcopy(answer)) == answer


def chunk(index: int, text: str | None, ends: bool = False, **more: object) -> dict:
    return {
        "choices": [{"index": index, "delta": {"content": text, **more}, "finish_reason": "stop" if ends else None}]
    }


def test_the_choices_of_a_stream_are_filtered_each_by_itself() -> None:
    stream = AnswerFilter()
    pieces = [(0, "⟦k"), (1, "v:abcdefgh⟧"), (0, "v:abcdefgh⟧ done"), (1, " too")]
    out = {0: "", 1: ""}
    for index, text in pieces:
        out[index] += stream.clean(chunk(index, text))["choices"][0]["delta"]["content"]
    assert out == {0: " done", 1: "v:abcdefgh⟧ too"}


def test_what_was_held_back_comes_with_a_choice_s_last_chunk() -> None:
    stream = AnswerFilter()
    assert stream.clean(chunk(0, "x ⟦"))["choices"][0]["delta"]["content"] == "x "
    assert stream.clean(chunk(0, None, ends=True))["choices"][0]["delta"]["content"] == "⟦"


def test_arguments_of_streamed_tool_calls_lose_their_handles() -> None:
    stream = AnswerFilter()
    out = ""
    for piece in ('{"x": "⟦kv:abc', 'defgh⟧1"}'):
        call = {"index": 0, "function": {"arguments": piece}}
        out += stream.clean(chunk(0, None, tool_calls=[call]))["choices"][0]["delta"]["tool_calls"][0]["function"][
            "arguments"
        ]
    assert out == '{"x": "1"}'
