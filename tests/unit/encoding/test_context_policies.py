from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plumbing import Bytes

from inferscale_memory.config import Settings
from inferscale_memory.encoding.policies import (
    ANYTHING,
    DEFAULT_POLICY,
    MAX_BUDGET,
    MAX_WINDOW,
    NONE,
    PREAMBLE,
    PREFIX,
    ContextItem,
    Ladder,
    Mixed,
    Near,
    Nearest,
    Preceding,
    Session,
    build_request,
    chosen_at,
    parse_policy,
    rungs_of,
    wanted_at,
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
    near: list[Near] | None = None
    session: list[Said] | None = None

    def nearest_facts(self, fact, n):
        return None if self.near is None else self.near[:n]

    def session_facts(self, fact, n):
        return None if self.session is None else self.session[-n:]

    def preceding_facts(self, fact, n):
        return self.facts[-n:]

    def preceding_turns(self, fact, n):
        return self.turns[-n:]


FACT = Said("f", "the dog is Rex")
BEFORE = Before(
    [Said("a", "first", 3), Said("b", "second")],
    [Said("t", "Hi", speaker="Ann"), Said("u", "Hello", role="assistant")],
)


def test_the_default_is_a_ladder():
    assert parse_policy(None) == DEFAULT_POLICY == Ladder((5, 8, 20))
    assert parse_policy(Settings().policy) == DEFAULT_POLICY


def test_a_ladder_has_a_chunk_behind_the_preamble_and_one_for_each_step():
    assert parse_policy("ladder") == Ladder((5, 8, 20))
    names = ["preamble", "preceding:5:fact", "nearest:8", "nearest:20"]
    assert [rung.name for rung in rungs_of(Ladder())] == names
    assert [rung.name for rung in rungs_of(parse_policy("ladder:7"))] == ["preamble", "preceding:7:fact"]


def test_a_place_takes_the_lowest_rung_with_at_least_as_many_facts_as_stand_before_it():
    names = [wanted_at(Ladder(), place) for place in (0, 1, 5, 6, 8, 9, 20, 21, 400)]
    small, middle, large = "preceding:5:fact", "nearest:8", "nearest:20"
    assert names == ["preamble", small, small, middle, middle, large, large, large, large]
    assert wanted_at(Preceding(5), 7) == "preceding:5:fact", "a plain policy has one chunk for every place"


@pytest.mark.parametrize(
    ("there", "place", "chosen"),
    [
        ("preamble preceding:5:fact nearest:8 nearest:20", 6, "nearest:8"),
        ("preamble preceding:5:fact nearest:20", 6, "nearest:20"),
        ("preamble preceding:5:fact", 6, "preceding:5:fact"),
        ("preamble", 30, "preamble"),
        ("nearest:8", 0, "nearest:8"),
    ],
)
def test_as_long_as_the_chunk_for_a_place_is_missing_the_next_larger_one_stands_in_else_the_next_smaller(
    there, place, chosen
):
    assert chosen_at(Ladder(), place, {name: name for name in there.split()}) == chosen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ladder:8:3", "rise"),
        ("ladder:3:3", "rise"),
        ("ladder:0:3", "window of 'ladder' is 0"),
        ("ladder:3:9t", "budget"),
        ("ladder:1:2:3:4:5:6:7:8", "1 to 7 steps"),
    ],
)
def test_a_ladder_that_does_not_rise_or_is_too_long_is_refused(text, message):
    with pytest.raises(InvalidInputError, match=message):
        parse_policy(text)


WINDOWS, BUDGETS = st.integers(1, MAX_WINDOW), st.none() | st.integers(1, MAX_BUDGET)


@given(
    st.sampled_from([NONE, PREAMBLE, PREFIX])
    | st.builds(Preceding, WINDOWS, st.sampled_from(["fact", "turn"]), budget=BUDGETS)
    | st.builds(Nearest, WINDOWS, budget=BUDGETS)
    | st.builds(Mixed, WINDOWS, WINDOWS, budget=BUDGETS)
    | st.builds(Session, WINDOWS, budget=BUDGETS)
    | st.sets(WINDOWS, min_size=1, max_size=7).map(lambda steps: Ladder(tuple(sorted(steps))))
)
def test_every_policy_is_parsed_back_from_its_name(policy):
    assert parse_policy(policy.name) == policy


@pytest.mark.parametrize(
    "text", ["preceding(7,turn)", "preceding( 7 , turn )", " preceding:7:turn ", Preceding(7, "turn")]
)
def test_one_policy_has_one_canonical_name_however_it_is_written(text):
    assert parse_policy(text).name == "preceding:7:turn"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nearest", "nearest:5"),
        ("nearest(10, 400t)", "nearest:10:400t"),
        ("nearest:400t", "nearest:5:400t"),
        ("mixed", "mixed:5:3"),
        ("mixed( 7 ,2,90t)", "mixed:7:2:90t"),
        ("session(4)", "session:4"),
        ("preceding:5:turn:80t", "preceding:5:turn:80t"),
        ("preceding(5,80t)", "preceding:5:fact:80t"),
    ],
)
def test_numbers_left_out_are_the_defaults_and_a_budget_stands_last(text, name):
    assert parse_policy(text).name == name


def test_only_policies_that_go_by_vectors_depend_on_facts_saved_later():
    policies = [NONE, PREAMBLE, PREFIX, Preceding(), Session(), Nearest(), Mixed()]
    assert [p.name for p in policies if p.similar] == ["nearest:5", "mixed:5:3"]
    assert [p.name for p in policies if p.reach(()) is not None] == ["nearest:5", "mixed:5:3"]


def test_only_prefix_is_positional_and_only_preamble_and_preceding_stand_behind_the_neutral_preamble():
    policies = [NONE, PREAMBLE, PREFIX, Preceding()]
    assert [p.positional for p in policies] == [False, False, True, False]
    assert [p.neutral for p in policies] == [False, True, False, True]


@pytest.mark.parametrize(
    "text",
    [
        *("", "all", "preceding:", "preceding:-1", "preceding:5:facts:x", "preceding(5", "Prefix", "preceding:٥"),
        *("nearest:five", "nearest:5:fact", "nearest:5:3", "mixed:5:3:2", "session:5:400", "nearest:400t:5", "none:5"),
    ],
)
def test_an_unknown_policy_is_refused_with_the_known_ones(text):
    with pytest.raises(InvalidInputError, match="give 'none', 'preamble', 'prefix'"):
        parse_policy(text)


@pytest.mark.parametrize("window", [0, MAX_WINDOW + 1])
def test_a_window_out_of_range_is_refused(window):
    with pytest.raises(InvalidInputError, match=f"is {window}; it must be 1 to {MAX_WINDOW}"):
        parse_policy(f"preceding:{window}")


@pytest.mark.parametrize("text", ["nearest:0", "mixed:0:3", "mixed:3:0", "session:1001", "mixed:3:1001"])
def test_every_window_is_checked(text):
    with pytest.raises(InvalidInputError, match=f"it must be 1 to {MAX_WINDOW}"):
        parse_policy(text)


@pytest.mark.parametrize("text", ["nearest:5:0t", "preceding:5:fact:1000001t"])
def test_a_budget_out_of_range_is_refused(text):
    with pytest.raises(InvalidInputError, match=f"tokens; it must be 1 to {MAX_BUDGET}"):
        parse_policy(text)


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


NEAR = [Near(Said("n", "nearest", 2), 0.9), Near(Said("b", "second"), 0.5), Near(Said("o", "other"), 0.1)]


def test_the_nearest_facts_stand_before_the_fact_the_most_similar_last():
    items = Nearest(2).context(FACT, Before(near=NEAR))
    assert items == (
        ContextItem("second", fact_id="b", revision=1, similarity=0.5),
        ContextItem("nearest", fact_id="n", revision=2, similarity=0.9),
    )


def test_mixed_takes_preceding_facts_first_then_the_nearest_that_are_not_among_them():
    items = Mixed(2, 2).context(FACT, Before(BEFORE.facts, near=NEAR))
    assert [item.fact_id for item in items] == ["a", "b", "o", "n"]


@pytest.mark.parametrize(("policy", "n"), [(Nearest(2), 2), (Mixed(1, 1), 2)])
def test_a_fact_without_a_vector_stands_behind_as_many_preceding_facts(policy, n):
    items = policy.context(FACT, BEFORE)
    assert [item.fact_id for item in items] == ["a", "b"][-n:]
    assert policy.reach(items) == ANYTHING


def test_a_further_fact_matters_if_it_is_as_similar_as_the_least_similar_one_taken():
    source = Before(BEFORE.facts, near=NEAR)
    assert Nearest(2).reach(Nearest(2).context(FACT, source)) == 0.5
    assert Nearest(4).reach(Nearest(4).context(FACT, source)) == ANYTHING
    assert Mixed(2, 1).reach(Mixed(2, 1).context(FACT, source)) == 0.1


def test_a_session_is_its_newest_facts_before_the_fact_oldest_first():
    source = Before(BEFORE.facts, session=[Said("p", "one"), Said("q", "two"), Said("r", "three")])
    assert [item.fact_id for item in Session(2).context(FACT, source)] == ["q", "r"]


def test_the_first_fact_of_a_session_stands_alone_and_one_without_a_session_behind_preceding_facts():
    assert Session(2).context(FACT, Before(BEFORE.facts, session=[])) == ()
    assert [item.fact_id for item in Session(2).context(FACT, BEFORE)] == ["a", "b"]


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


@given(LENGTHS, st.integers(1, 100))
def test_a_budget_leaves_out_whole_items_the_first_of_the_choice_first(lengths, budget):
    items = tuple(ContextItem("x" * n, fact_id=str(i), revision=1) for i, n in enumerate(lengths))
    request = build_request(Bytes(), Nearest(8, budget=budget), FACT, items, 10_000)
    spent = request.start - len(Bytes().neutral_preamble())
    assert spent <= budget
    assert request.left_out + request.kept == items
    if request.left_out:
        assert spent + len(Bytes().fact_tokens(request.left_out[-1].text)) > budget


def test_where_lines_stand_is_the_policys_own_matter_and_does_not_change_which_are_left_out():
    class Backwards(Nearest):
        def arrange(self, items):
            return tuple(reversed(items))

    items = [ContextItem(text, fact_id=text, revision=1) for text in ("far", "near", "nearest")]
    request = build_request(Bytes(), Backwards(3, budget=20), FACT, items, 1000)
    assert bytes(request.context_ids[2:]) == b"- nearest\n- near\n"
    assert [item.text for item in request.left_out] == ["far"]


def test_a_fact_that_just_fits_is_encoded_and_one_token_more_is_refused():
    exact = 2 + len(b"- the dog is Rex\n") + 1
    assert build_request(Bytes(), PREAMBLE, FACT, (), exact).end == exact - 1
    with pytest.raises(EncodingError, match=r"fact f is 17 tokens; behind a preamble of 2 at most 16 fit"):
        build_request(Bytes(), PREAMBLE, FACT, (), exact - 1)
