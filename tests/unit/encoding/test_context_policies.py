from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plumbing import Bytes

from inferscale_memory.encoding.policies import (
    DEFAULT_POLICY,
    MAX_WINDOW,
    NONE,
    PREAMBLE,
    PREFIX,
    ContextItem,
    Preceding,
    build_request,
    parse_policy,
)
from inferscale_memory.errors import EncodingError, InvalidInputError


@dataclass
class Said:
    id: str
    text: str
    revision: int = 1
    turn_ids: tuple[str, ...] = ()
    speaker: str | None = None
    role: str = "user"


@dataclass
class Before:
    facts: list[Said] = field(default_factory=list)
    turns: list[Said] = field(default_factory=list)

    def preceding_facts(self, fact, n):
        return self.facts[-n:]

    def preceding_turns(self, fact, n):
        return self.turns[-n:]


FACT = Said("f", "the dog is Rex")
BEFORE = Before(
    [Said("a", "first", 3), Said("b", "second")],
    [Said("t", "Hi", speaker="Ann"), Said("u", "Hello", role="assistant")],
)


def test_the_default_is_five_preceding_facts():
    assert parse_policy(None) == DEFAULT_POLICY == Preceding(5, "fact")


@given(
    st.sampled_from([NONE, PREAMBLE, PREFIX])
    | st.builds(Preceding, st.integers(1, MAX_WINDOW), st.sampled_from(["fact", "turn"]))
)
def test_every_policy_is_parsed_back_from_its_name(policy):
    assert parse_policy(policy.name) == policy


@pytest.mark.parametrize(
    "text", ["preceding(7,turn)", "preceding( 7 , turn )", " preceding:7:turn ", Preceding(7, "turn")]
)
def test_one_policy_has_one_canonical_name_however_it_is_written(text):
    assert parse_policy(text).name == "preceding:7:turn"


def test_only_prefix_is_positional_and_only_preamble_and_preceding_stand_behind_the_neutral_preamble():
    policies = [NONE, PREAMBLE, PREFIX, DEFAULT_POLICY]
    assert [p.positional for p in policies] == [False, False, True, False]
    assert [p.neutral for p in policies] == [False, True, False, True]


@pytest.mark.parametrize(
    "text", ["", "all", "preceding:", "preceding:-1", "preceding:5:facts:x", "preceding(5", "Prefix", "preceding:٥"]
)
def test_an_unknown_policy_is_refused_with_the_known_ones(text):
    with pytest.raises(InvalidInputError, match="give 'none', 'preamble', 'prefix'"):
        parse_policy(text)


@pytest.mark.parametrize("window", [0, MAX_WINDOW + 1])
def test_a_window_out_of_range_is_refused(window):
    with pytest.raises(InvalidInputError, match=f"is {window}; it must be 1 to {MAX_WINDOW}"):
        parse_policy(f"preceding:{window}")


def test_an_unknown_unit_is_refused():
    with pytest.raises(InvalidInputError, match="unit is 'word'; it must be 'fact' or 'turn'"):
        parse_policy("preceding:5:word")


def test_preceding_facts_are_named_with_their_revisions():
    assert Preceding(2).context(FACT, BEFORE) == (
        ContextItem("first", fact_id="a", revision=3),
        ContextItem("second", fact_id="b", revision=1),
    )


def test_preceding_turns_carry_their_speaker_or_role():
    said = Said("f", "x", turn_ids=("v",))
    assert Preceding(2, "turn").context(said, BEFORE) == (
        ContextItem("Ann: Hi", turn_id="t"),
        ContextItem("Assistant: Hello", turn_id="u"),
    )


def test_a_fact_without_turns_falls_back_to_facts():
    assert [item.fact_id for item in Preceding(1, "turn").context(FACT, BEFORE)] == ["b"]


@pytest.mark.parametrize("policy", [NONE, PREAMBLE, PREFIX])
def test_the_fixed_policies_have_no_context_of_their_own(policy):
    assert policy.context(FACT, BEFORE) == ()


def test_a_request_is_preamble_then_context_then_fact():
    items = Preceding(2).context(FACT, BEFORE)
    request = build_request(Bytes(), Preceding(2), FACT, items, 1000)
    assert request.token_ids == (256, 257, *b"- first\n- second\n- the dog is Rex\n")
    assert bytes(request.fact_ids) == b"- the dog is Rex\n"
    assert request.context_ids + request.fact_ids == request.token_ids
    assert request.kept == items


def test_without_preamble_the_fact_stands_at_position_zero():
    request = build_request(Bytes(), NONE, FACT, (), 1000)
    assert (request.start, request.end) == (0, len(request.token_ids))


LENGTHS = st.lists(st.integers(0, 30), max_size=8)


@given(LENGTHS, st.integers(20, 200))
def test_windows_are_cut_from_the_left_by_whole_items_and_never_more_than_needed(lengths, room):
    items = tuple(ContextItem("x" * n, fact_id=str(i), revision=1) for i, n in enumerate(lengths))
    request = build_request(Bytes(), PREAMBLE, FACT, items, room)
    assert len(request.token_ids) + 1 <= room
    kept = len(request.kept)
    assert request.kept == items[len(items) - kept :]
    if kept < len(items):
        left_out = len(Bytes().fact_tokens(items[-kept - 1].text))
        assert len(request.token_ids) + left_out + 1 > room


def test_a_fact_that_just_fits_is_encoded_and_one_token_more_is_refused():
    exact = 2 + len(b"- the dog is Rex\n") + 1
    assert build_request(Bytes(), PREAMBLE, FACT, (), exact).end == exact - 1
    with pytest.raises(EncodingError, match=r"fact f is 17 tokens; behind a preamble of 2 at most 16 fit"):
        build_request(Bytes(), PREAMBLE, FACT, (), exact - 1)
