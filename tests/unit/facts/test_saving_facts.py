import math
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.facts import FactStore, NewFact, NewTurn
from inferscale_memory.scope import Scope
from inferscale_memory.text import is_blank, normalise

unicode_text = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        st.sampled_from("猫は好き我喜歡한국어مرحبا👩‍🚀\u0301\u0308{}%<|>\n⟦⟧"),
    ),
    min_size=1,
    max_size=80,
).filter(lambda text: not is_blank(text))


def said(text: str, turn_id: str) -> dict:
    return {"items": [NewFact(text, turn_ids=(turn_id,))], "turns": [NewTurn("user", text, id=turn_id)]}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=unicode_text, note=unicode_text)
def test_text_and_metadata_come_back_character_for_character(store: FactStore, text, note):
    owner = Scope.of(user_id="u" + str(store.last_change()))
    (saved,) = store.add([NewFact(text, metadata={note: [note]})], owner).facts
    assert store.get(saved.id, owner) == saved
    assert (saved.text, saved.metadata) == (text, {note: [note]})


def test_non_ascii_text_and_metadata_are_stored_readable(store, engine, alice):
    store.add([NewFact("我住在格拉茨", metadata={"città": "格拉茨"})], alice)
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT text, metadata FROM facts").one()
    assert tuple(row) == ("我住在格拉茨", '{"città":"格拉茨"}')


def test_good_items_are_saved_and_bad_ones_named_by_place(store, alice):
    given_items = ["good", "", " \n", "nul\0", "\ud800", "x" * 2**20, "also good", None]
    result = store.add([NewFact(text) for text in given_items], alice)
    assert [fact.text for fact in result.facts] == ["good", "also good"]
    reasons = {error.index: error.reason for error in result.errors}
    assert sorted(reasons) == [1, 2, 3, 4, 5, 7]
    assert "blank" in reasons[1]
    assert "blank" in reasons[2]
    assert "NUL" in reasons[3]
    assert "surrogate" in reasons[4]
    assert "over-long: 1048576" in reasons[5]
    assert "NoneType" in reasons[7]
    assert store.count(alice) == 2


@pytest.mark.parametrize(
    "metadata", [{"x": object()}, {"x": math.nan}, {"x": "\ud800"}, ["no", "mapping"], {"x": "y" * 70_000}]
)
def test_an_item_with_unusable_metadata_does_not_fail_the_others(store, alice, metadata):
    result = store.add([NewFact("bad", metadata=metadata), NewFact("good")], alice)
    assert [fact.text for fact in result.facts] == ["good"]
    assert [error.index for error in result.errors] == [0]
    assert "metadata" in result.errors[0].reason


def test_a_lower_limit_of_the_store_holds_for_facts_and_turns(engine, alice):
    result = FactStore(engine, max_fact_chars=5).add([NewFact("123456")], alice, turns=[NewTurn("user", "1234567")])
    assert result.facts == ()
    assert "at most 5" in result.errors[0].reason


def test_the_same_statement_in_other_white_space_or_form_is_one_fact_as_first_written(store, alice):
    first = store.add([NewFact("Café  au lait")], alice).facts[0]
    again = store.add([NewFact(" Cafe\u0301 au\nlait ")], alice)
    assert again.facts == (first,)
    assert again.created == ()
    assert store.count(alice) == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(unicode_text, max_size=12))
def test_a_scope_holds_one_fact_per_normalised_text(store: FactStore, texts):
    owner = Scope.of(user_id="u" + str(store.last_change()))
    store.add([NewFact("anchor"), *map(NewFact, texts)], owner)
    result = store.add([NewFact(text) for text in texts], owner)
    assert [normalise(fact.text) for fact in result.facts] == [normalise(text) for text in texts]
    assert store.count(owner) == len({"anchor", *map(normalise, texts)})


def test_a_repeated_statement_gains_a_source_and_a_line_of_history(store, alice):
    (first,) = store.add(**said("I live in Graz", "m1"), scope=alice).facts
    items = [NewFact("I live in Graz", turn_ids=("m2",), metadata={"n": 2})]
    (again,) = store.add(items, alice, turns=[NewTurn("user", "I live in Graz", id="m2")]).facts
    assert again.id == first.id
    assert again.revision == 1
    assert again.metadata == {}
    assert [store.get_turns([turn_id])[turn_id].external_id for turn_id in again.turn_ids] == ["m1", "m2"]
    assert [(line.kind, line.metadata) for line in store.history(first.id, alice)] == [
        ("add", {}),
        ("source", {"n": 2}),
    ]


def test_a_retry_with_the_same_turn_id_changes_nothing(store, alice):
    (first,) = store.add(**said("I live in Graz", "m1"), scope=alice).facts
    assert store.add(**said("I live in Graz", "m1"), scope=alice).facts == (first,)
    assert len(store.history(first.id, alice)) == 1


def test_a_late_retry_does_not_bring_back_the_text_before_an_update(store, alice):
    (first,) = store.add(**said("I live in Graz", "m1"), scope=alice).facts
    updated = store.update(first.id, alice, text="I live in Linz")
    assert store.add(**said("I live in Graz", "m1"), scope=alice).facts == (updated,)
    assert store.count(alice) == 1


def test_saying_the_old_text_again_after_an_update_is_a_new_fact(store, alice):
    (first,) = store.add([NewFact("I live in Graz")], alice).facts
    store.update(first.id, alice, text="I live in Linz")
    assert store.add([NewFact("I live in Graz")], alice).created != ()


def test_a_given_idempotency_key_makes_a_call_without_message_ids_safe_to_repeat(store, alice):
    def call():
        turns = [NewTurn("user", "hello"), NewTurn("system", "be kind")]
        return store.add([NewFact("hello", turn_ids=(turns[0].id,))], alice, turns=turns, idempotency_key="request-1")

    first, second = call(), call()
    assert second.facts == first.facts
    assert second.created == ()
    assert len(first.facts[0].turn_ids) == 1


def test_an_idempotency_key_used_for_another_text_is_an_item_error(store, alice):
    store.add([NewFact("one")], alice, idempotency_key="k")
    result = store.add([NewFact("two"), NewFact("three")], alice, idempotency_key="k")
    assert "already used for another text" in result.errors[0].reason
    assert [fact.text for fact in result.facts] == ["three"]


def test_an_idempotency_key_of_one_user_means_nothing_for_another(store, alice):
    store.add([NewFact("one")], alice, idempotency_key="k")
    assert store.add([NewFact("two")], Scope.of(user_id="bob"), idempotency_key="k").errors == ()


def test_a_blank_idempotency_key_is_refused(store, alice):
    with pytest.raises(InvalidInputError, match="idempotency_key"):
        store.add([NewFact("one")], alice, idempotency_key=" ")


def test_a_source_that_nobody_knows_is_an_item_error(store, alice):
    result = store.add([NewFact("fact", turn_ids=("ghost",))], alice)
    assert "'ghost'" in result.errors[0].reason


def test_the_same_message_id_of_two_users_names_two_turns(store, alice):
    (mine,) = store.add(**said("I am Alice", "1"), scope=alice).facts
    (theirs,) = store.add(**said("I am Bob", "1"), scope=Scope.of(user_id="bob")).facts
    assert set(mine.turn_ids).isdisjoint(theirs.turn_ids)
    assert store.get_turns(theirs.turn_ids)[theirs.turn_ids[0]].text == "I am Bob"


def test_turns_that_only_refused_items_name_are_not_kept(store, engine, alice):
    store.add([NewFact(" ", turn_ids=("m1",))], alice, turns=[NewTurn("user", "secret", id="m1")])
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM turns").scalar() == 0


def test_a_time_without_a_zone_is_an_item_error_and_one_with_a_zone_is_kept(store, alice):
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    result = store.add([NewFact("a", created_at=datetime(2024, 5, 1)), NewFact("b", created_at=at)], alice)
    assert "time zone" in result.errors[0].reason
    assert result.facts[0].created_at == at


def test_a_failed_transaction_of_several_calls_leaves_nothing(store, alice):
    with pytest.raises(RuntimeError, match="later step"), store.transaction() as tx:  # noqa: PT012
        store.add([NewFact("half done")], alice, tx=tx)
        assert store.count(alice, tx=tx) == 1
        raise RuntimeError("later step")
    assert store.count(alice) == 0


def test_a_call_that_forgets_the_open_transaction_is_told_so(store, alice):
    with pytest.raises(Exception, match="pass it to the store's methods as tx="), store.transaction():
        store.add([NewFact("elsewhere")], alice)
