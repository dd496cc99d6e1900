import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.text import MAX_FACT_CHARS, check_text, normalise, preview

valid_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u3000", "\u200b\u200d", "\x07"])
def test_text_without_a_visible_character_is_refused_as_blank(blank):
    with pytest.raises(InvalidInputError, match="blank"):
        check_text(blank)


def test_a_nul_is_refused_with_its_position():
    with pytest.raises(InvalidInputError, match="NUL character at position 2"):
        check_text("ab\0c")


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_a_lone_surrogate_is_refused_by_code_point(text):
    with pytest.raises(InvalidInputError, match=r"lone surrogate \(U\+D"):
        check_text(text)


@pytest.mark.parametrize("value", [None, b"bytes", 7, ["a"]])
def test_what_is_not_a_string_is_refused_by_type(value):
    with pytest.raises(InvalidInputError, match=f"got {type(value).__name__}"):
        check_text(value)


def test_one_megabyte_of_text_is_refused_with_both_lengths():
    with pytest.raises(InvalidInputError, match=f"1048576 characters, at most {MAX_FACT_CHARS}"):
        check_text("x" * 2**20)


def test_the_limit_is_counted_in_characters_and_inclusive():
    assert check_text("語" * 10, max_chars=10) == "語" * 10
    with pytest.raises(InvalidInputError, match="over-long"):
        check_text("語" * 11, max_chars=10)


@pytest.mark.parametrize("text", ['{"a": 1}', "{user} {{x}} %s", "<|im_end|>", "two\nlines", "👩‍👩‍👧", "נ", "e\u0301"])
def test_ordinary_text_is_taken_untouched(text):
    assert check_text(text) == text


@given(valid_text)
def test_normalising_twice_changes_nothing_more(text):
    assert normalise(normalise(text)) == normalise(text)


@given(valid_text)
def test_composed_and_decomposed_forms_are_the_same_fact(text):
    assert normalise(unicodedata.normalize("NFD", text)) == normalise(text)


@given(st.lists(st.text("abcé語ع", min_size=1), min_size=1), st.sampled_from([" ", "\n", "\t \u3000", "\r\n"]))
def test_white_space_does_not_tell_facts_apart(words, gap):
    assert normalise(gap + gap.join(words) + gap) == " ".join(words)


def test_case_and_punctuation_tell_facts_apart():
    assert normalise("Mark lives here") != normalise("mark lives here") != normalise("mark lives here.")


@given(st.text(st.characters()))
def test_a_preview_is_one_short_printable_line(text):
    shown = preview(text)
    assert len(shown) <= 61
    assert shown.isprintable()
    shown.encode("utf-8")
