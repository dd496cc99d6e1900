import json
import re

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.handles import find_handles, strip_handles
from inferscale_memory.handles.text import decode_letters, encode_letters, letters_for

HANDLE = f"⟦kv:{encode_letters(bytes(range(54)))}⟧"
texts = st.text(alphabet="⟦⟧kv:abZ \n{}é", max_size=60)


@given(st.binary(max_size=80))
def test_any_bytes_come_back_from_their_letters(payload):
    letters = encode_letters(payload)
    assert re.fullmatch("[A-Za-z]*", letters)
    assert decode_letters(letters, len(payload)) == payload


@given(st.text(alphabet="ABYZabyz", min_size=letters_for(8), max_size=letters_for(8)))
def test_bytes_have_one_spelling_only(letters):
    payload = decode_letters(letters, 8)
    assert payload is None or encode_letters(payload) == letters


@pytest.mark.parametrize("letters", ["", "A", "é" * letters_for(4), "z" * letters_for(4), "A" * (letters_for(4) + 1)])
def test_letters_of_another_length_alphabet_or_range_are_no_bytes(letters):
    assert decode_letters(letters, 4) is None


def test_a_handle_survives_formatting_templating_and_json():
    carried = [
        f"Use {HANDLE}.",
        "Use {memory}.".format_map({"memory": HANDLE}),
        jinja2.Template("Use {{ memory }}.").render(memory=HANDLE),
        jinja2.Environment(autoescape=True).from_string("Use {{ memory }}.").render(memory=HANDLE),
        json.loads(json.dumps(f"Use {HANDLE}.")),
    ]
    assert all(find_handles(text) == [HANDLE] for text in carried)


def test_handles_are_found_once_each_in_order():
    assert find_handles("b ⟦kv:Bb⟧ a⟦kv:Aa⟧ ⟦kv:Bb⟧") == ["⟦kv:Bb⟧", "⟦kv:Aa⟧"]


@pytest.mark.parametrize("kept", range(3, len(HANDLE)))
def test_a_handle_cut_at_its_end_is_not_found_and_its_remains_are_stripped(kept):
    text = "Hello. " + HANDLE[:kept]
    assert find_handles(text) == []
    assert strip_handles(text) == "Hello. "


@pytest.mark.parametrize("cut", range(1, len(HANDLE) - 12))
def test_a_handle_cut_at_its_front_is_not_found_and_its_remains_are_stripped(cut):
    text = HANDLE[cut:] + " Hello."
    assert find_handles(text) == []
    assert strip_handles(text) == " Hello."


@pytest.mark.parametrize(
    "text", ["", "plain", "⟦x⟧ means x", "⟦", "the sum ⟦a⟧ + b⟧", "{user} %s {{x}}", "kv:abc", "[kv:abc]"]
)
def test_text_without_handles_is_left_alone(text):
    assert strip_handles(text) == text


@pytest.mark.parametrize("text", ["⟦kv:⟦kv:abc⟧⟧", "⟦k⟦kv:abc⟧v:DEF⟧", "⟦k⟦k⟦kv:a⟧v:b⟧v:c⟧", "⟦k" * 9 + "v:abc⟧" * 9])
def test_stripping_leaves_no_handle_however_they_are_nested(text):
    assert "⟦kv:" not in strip_handles(text)


@given(texts)
def test_stripped_text_holds_no_handle_and_stripping_again_changes_no_handle(text):
    stripped = strip_handles(text)
    assert find_handles(stripped) == []
    assert "⟦kv:" not in stripped


@pytest.mark.timeout(60)  # one pass takes milliseconds; one pass per level would take hours
def test_a_text_nested_without_end_is_stripped():
    assert "⟦kv:" not in strip_handles("⟦k" * 100_000 + "v:a⟧" * 100_000)
