"""In which order a handle's facts stand, over the questions of a conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_memory import ConfigError, InvalidInputError, Scope
from inferscale_memory.order import PlacedFacts
from tests.unit.memory.standin import StandIn

ALICE, HERE = Scope.of(user_id="alice"), {"user_id": "alice", "session_id": "here"}
WORDS = ("dog", "cat", "tea", "train", "sofa", "nine")


def placed(memory, handle):
    return [fact.fact.text for fact in memory.explain(handle).facts]


@pytest.fixture
def saved(memory):
    memory.add([f"{word} {other}" for word in WORDS for other in WORDS if word != other], user_id="alice")
    return memory


def test_facts_of_the_last_question_keep_their_places_and_new_ones_follow_the_best_last(saved):
    first = placed(saved, saved.recall("dog cat", 4, **HERE))
    again = saved.recall("cat tea", 4, **HERE)
    ranked = [scored.fact.text for scored in again.facts]
    kept = [text for text in first if text in ranked]
    assert kept
    assert placed(saved, again) == kept + [text for text in reversed(ranked) if text not in kept]


def test_the_first_question_of_a_scope_has_the_best_last(saved):
    handle = saved.recall("dog cat", 4, **HERE)
    assert placed(saved, handle) == [scored.fact.text for scored in reversed(handle.facts)]


def test_the_same_question_again_gives_the_same_handle_after_others_too(saved):
    saved.recall("dog cat", 5, **HERE)
    second = saved.recall("cat tea", 5, 2, **HERE)
    assert saved.recall("cat tea", 5, 2, **HERE) == second


def test_refreshed_facts_stand_at_the_very_end_the_best_last(saved):
    saved.recall("dog cat", 6, **HERE)
    handle = saved.recall("dog cat", 6, 2, **HERE)
    best, second = (scored.fact.text for scored in handle.facts[:2])
    assert placed(saved, handle)[-2:] == [second, best]
    assert [fact.refreshed for fact in saved.explain(handle).facts] == [False] * 4 + [True] * 2


def test_ranked_order_forgets_places_for_this_question(saved):
    saved.recall("dog cat", 4, **HERE)
    handle = saved.recall("cat tea", 4, order="ranked", **HERE)
    assert placed(saved, handle) == [scored.fact.text for scored in reversed(handle.facts)]


def test_the_order_is_a_setting(opened, monkeypatch):
    monkeypatch.setenv("INFERSCALE_ORDER", "ranked")
    memory = opened()
    memory.add(["dog cat", "cat tea", "tea dog"], user_id="alice")
    memory.recall("dog cat", user_id="alice")
    handle = memory.recall("tea dog", user_id="alice")
    assert placed(memory, handle)[-1] == "tea dog"
    monkeypatch.setenv("INFERSCALE_ORDER", "random")
    with pytest.raises(ConfigError, match="INFERSCALE_ORDER='random'"):
        opened()


def test_an_order_that_is_none_is_refused(memory):
    with pytest.raises(InvalidInputError, match="order is 'best'; wanted 'sticky' or 'ranked'"):
        memory.recall("dog", order="best", user_id="alice")


def test_what_one_scope_was_asked_moves_no_fact_of_another(saved):
    alone = placed(saved, saved.recall("cat tea", 4, user_id="alice", session_id="there"))
    saved.recall("dog cat", 4, **HERE)
    saved.recall("dog cat", 4, user_id="alice")
    assert placed(saved, saved.recall("cat tea", 4, user_id="alice", session_id="elsewhere")) == alone


def test_handles_of_the_same_facts_in_other_ranks_are_different_and_keep_their_own_scores(memory):
    memory.add(["dog cat", "cat tea"], user_id="alice")
    dog = memory.recall("dog", user_id="alice")
    tea = memory.recall("tea", user_id="alice")
    assert placed(memory, dog) == placed(memory, tea)
    assert dog != tea
    for handle in (dog, tea):
        shown = {fact.fact.id: fact.score for fact in memory.explain(handle).facts}
        assert shown == {scored.fact.id: scored.score for scored in handle.facts}


def test_a_deleted_fact_leaves_its_place_and_delete_all_leaves_none(saved):
    handle = saved.recall("dog cat", 4, **HERE)
    first, *rest = [fact.fact for fact in saved.explain(handle).facts]
    saved.delete(first.id, user_id="alice")
    assert placed(saved, saved.recall("dog cat", 3, **HERE)) == [fact.text for fact in rest]
    saved.delete_all(user_id="alice")
    assert not saved._placed._placed
    saved.add(["dog", "cat dog"], user_id="alice")
    again = saved.recall("cat dog", **HERE)
    assert placed(saved, again) == ["dog", "cat dog"]


def test_the_worst_ranked_is_the_first_to_go_wherever_it_stands(opened, home):
    engine = StandIn(home)
    memory = opened(engine)
    memory.add(["dog cat", "cat tea", "tea sofa"], user_id="alice")
    memory.recall("dog cat", user_id="alice")
    handle = memory.recall("tea sofa", 3, 1, user_id="alice")
    resolution = engine.resolver.resolve([str(handle)], None)
    ranks = {fact.id: fact.rank for fact in (*resolution.facts, *resolution.refreshed)}
    assert ranks == {scored.fact.id: rank for rank, scored in enumerate(handle.facts)}


IDS = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(questions=st.lists(st.tuples(IDS, st.integers(0, 3)), min_size=1, max_size=6))
def test_every_fact_stands_once_and_what_is_kept_keeps_its_order(questions):
    placing, before = PlacedFacts(), []
    for ranked, refresh in questions:
        order = placing.place(ALICE, ranked, refresh, "sticky")
        assert sorted(order) == sorted(ranked)
        assert placing.place(ALICE, ranked, refresh, "sticky") == order
        late = ranked[:refresh]
        body = order[: len(order) - len(late)]
        assert order[len(body) :] == late[::-1]
        kept = [fact for fact in before if fact in body]
        assert body[: len(kept)] == kept
        before = body


def test_places_are_kept_for_the_scopes_asked_last():
    placing = PlacedFacts(capacity=2)
    scopes = [Scope.of(user_id=name) for name in "abc"]
    for scope in scopes:
        placing.place(scope, ["x", "y"], 0, "sticky")
    assert placing.place(scopes[0], ["x", "y", "z"], 0, "sticky") == ["z", "y", "x"]
    assert placing.place(scopes[2], ["x", "y", "z"], 0, "sticky") == ["y", "x", "z"]
