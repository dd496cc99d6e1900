"""Synthetic facts: exact length, no two alike, the same in every run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory.bench.facts import make_facts
from inferscale_memory.errors import InvalidInputError


def words(text: str) -> int:
    """A tokenizer of one token a word, and two for the bullet and the line break."""
    return len(text.split()) + 2


def pairs_of_letters(text: str) -> int:
    """A tokenizer whose tokens are shorter than words: not every length can be reached by whole words."""
    return -(-len(text) // 2)


@given(count=st.integers(0, 40), tokens=st.integers(9, 60))
def test_every_fact_has_exactly_the_wanted_length(count: int, tokens: int) -> None:
    facts = make_facts(count, tokens, words)
    assert [words(fact) for fact in facts] == [tokens] * count


@given(tokens=st.integers(12, 80))
def test_the_length_is_exact_for_tokens_that_are_no_words(tokens: int) -> None:
    assert {pairs_of_letters(fact) for fact in make_facts(10, tokens, pairs_of_letters)} == {tokens}


def test_no_two_facts_are_alike() -> None:
    assert len(set(make_facts(200, 25, words))) == 200


def test_two_runs_write_the_same_facts() -> None:
    assert make_facts(20, 25, words) == make_facts(20, 25, words)


def test_fewer_facts_are_the_first_of_more() -> None:
    assert make_facts(5, 25, words) == make_facts(20, 25, words)[:5]


def test_a_length_that_no_fact_has_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"only 0 different facts of 2 tokens.*--fact-tokens 25"):
        make_facts(3, 2, words)


def test_more_facts_than_there_are_of_a_length_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"different facts of 3 tokens were found, wanted 1000"):
        make_facts(1000, 3, words)
