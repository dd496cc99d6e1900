import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_memory.errors import FactNotFoundError
from inferscale_memory.facts import FactStore, NewFact, NewTurn
from inferscale_memory.scope import Scope

ids = st.sampled_from([None, "x", "y"])
scopes = st.builds(
    lambda tenant, user, agent, session: (tenant, user, agent, session),
    st.sampled_from(["t1", "t2"]), ids, ids, ids,
).filter(lambda s: any(s[1:])).map(lambda s: Scope(*s))  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(scopes, min_size=1, max_size=6, unique=True), asking=scopes)
def test_the_database_answers_as_scope_covers_says(engine, owners, asking):
    store = FactStore(engine)
    with store.transaction() as tx:
        facts = [store.add([NewFact("the same words")], owner, tx=tx).facts[0] for owner in owners]
        seen = {fact.id for fact in facts if asking.covers(fact.scope)}
        assert {fact.id for fact in store.list(asking, tx=tx).facts} == seen
        assert store.count(asking, tx=tx) == len(seen)
        assert {fact.id for fact in facts if store.get(fact.id, asking, tx=tx)} == seen
        tx.rollback()


def test_two_users_with_the_same_session_id_see_only_their_own(store):
    mine, theirs = Scope.of(user_id="alice", session_id="s"), Scope.of(user_id="bob", session_id="s")
    store.add([NewFact("alice's")], mine)
    store.add([NewFact("bob's")], theirs)
    assert [fact.text for fact in store.list(mine).facts] == ["alice's"]
    assert [fact.text for fact in store.list(theirs).facts] == ["bob's"]


def test_user_and_agent_together_find_the_users_general_facts_too(store):
    store.add([NewFact("general")], Scope.of(user_id="u"))
    store.add([NewFact("for a")], Scope.of(user_id="u", agent_id="a"))
    store.add([NewFact("for b")], Scope.of(user_id="u", agent_id="b"))
    found = store.list(Scope.of(user_id="u", agent_id="a")).facts
    assert [fact.text for fact in found] == ["general", "for a"]


def test_a_foreign_fact_is_answered_like_a_missing_one(store, alice):
    bob = Scope.of(user_id="bob")
    (fact,) = store.add([NewFact("private")], alice).facts
    assert store.get(fact.id, bob) is None

    def answer(fact_id, call):
        with pytest.raises(FactNotFoundError) as caught:
            call(fact_id)
        return str(caught.value).replace(fact_id, "ID")

    calls = (
        lambda i: store.update(i, bob, text="mine now"),
        lambda i: store.delete(i, bob),
        lambda i: store.history(i, bob),
    )
    for call in calls:
        assert answer(fact.id, call) == answer("0" * 32, call)
    assert store.get(fact.id, alice) == fact


@pytest.mark.parametrize("nonsense", ["", "\ud800", "a\0b", None, 7, "' OR 1=1 --"])
def test_what_was_never_an_id_is_a_missing_fact(store, alice, nonsense):
    assert store.get(nonsense, alice) is None


def test_metadata_that_names_an_owner_is_plain_data(store, alice):
    claim = {"user_id": "bob", "scope": {"user": "bob"}, "tenant": "t2", "principal": "0"}
    (fact,) = store.add([NewFact("mine", metadata=claim)], alice).facts
    fact = store.update(fact.id, alice, metadata={**claim, "session_id": "s"})
    assert fact.scope == alice
    assert fact.metadata == {**claim, "session_id": "s"}
    assert store.count(Scope.of(user_id="bob")) == 0


def test_a_user_and_an_agent_of_one_name_are_two_owners(store):
    store.add([NewFact("user's")], Scope.of(user_id="sam"))
    assert store.count(Scope.of(agent_id="sam")) == 0
    assert store.count(Scope.of(session_id="sam")) == 0
    assert store.count(Scope.of(user_id="sam", tenant_id="other")) == 0


def test_ids_are_compared_exactly(store):
    store.add([NewFact("fact")], Scope.of(user_id="u", session_id="Straße"))
    for other in ("STRASSE", "straße", "Strasse"):
        assert store.count(Scope.of(user_id="u", session_id=other)) == 0


def test_nothing_precedes_a_fact_that_is_not_seen_wherever_it_is_seen(store):
    owners = [Scope.of(user_id="u", agent_id=a, session_id=s) for a, s in itertools.product([None, "a", "b"], repeat=2)]
    for owner in [*owners, Scope.of(user_id="other")]:
        store.add([NewFact("before", turn_ids=("m",))], owner, turns=[NewTurn("user", "before", id="m")])
    asking = list(owners)
    for owner in owners:
        turn = NewTurn("user", "after", id="n")
        (fact,) = store.add([NewFact("after", turn_ids=("n",))], owner, turns=[turn]).facts
        behind = store.preceding_facts(fact, 50)
        assert behind
        for reader in asking:
            if reader.covers(fact.scope):
                assert all(reader.covers(other.scope) for other in behind)
                assert all(reader.covers(other.scope) for other in store.preceding_turns(fact, 50))


def test_preceding_facts_are_the_nearest_before_it_oldest_first(store, alice):
    facts = store.add([NewFact(f"fact {i}") for i in range(6)], alice).facts
    assert store.preceding_facts(facts[4], 2) == [facts[2], facts[3]]
    assert store.preceding_facts(facts[0], 5) == []
    assert store.preceding_facts(facts[3], 0) == []


def test_facts_of_a_session_are_those_that_name_it_in_scope_or_metadata_saved_before_oldest_first(store, alice):
    named = ["one", "two", "one", None, "one", "one"]
    new = [NewFact(f"fact {i}", metadata={"session": name} if name else None) for i, name in enumerate(named)]
    facts = store.add(new, alice).facts
    assert store.session_facts(facts[4], 5) == [facts[0], facts[2]]
    assert store.session_facts(facts[5], 2) == [facts[2], facts[4]]
    assert store.session_facts(facts[1], 5) == []
    assert store.session_facts(facts[3], 5) is None
    scoped = Scope.of(user_id="alice", session_id="s")
    inside = store.add([NewFact("a"), NewFact("b", metadata={"session": "other"}), NewFact("c")], scoped).facts
    assert store.session_facts(inside[2], 5) == list(inside[:2])


@given(one=scopes, other=scopes)
def test_what_accompanies_a_fact_is_seen_from_wherever_the_fact_is(one, other):
    viewers = [Scope(*ids) for ids in itertools.product(["t1", "t2"], *[[None, "x", "y"]] * 3) if any(ids[1:])]
    if one.accompanies(other):
        assert all(viewer.covers(one) for viewer in viewers if viewer.covers(other))
    assert one.accompanies(one)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(scopes, min_size=1, max_size=5, unique=True))
def test_the_database_answers_as_scope_accompanies_says(engine, owners):
    store = FactStore(engine)
    with store.transaction() as tx:
        facts = [store.add([NewFact("x")], scope, tx=tx).facts[0] for scope in owners]
        for fact in facts:
            before = [other for other in facts if other.seq < fact.seq and other.scope.accompanies(fact.scope)]
            assert store.preceding_facts(fact, 50, tx=tx) == before
        tx.rollback()


def test_preceding_turns_stand_before_the_first_source(store, alice):
    turns = [NewTurn("user", f"turn {i}", id=str(i)) for i in range(5)]
    facts = store.add([NewFact("late", turn_ids=("4", "3")), NewFact("no turn")], alice, turns=turns).facts
    assert [turn.text for turn in store.preceding_turns(facts[0], 2)] == ["turn 1", "turn 2"]
    assert store.preceding_turns(facts[1], 5) == []


def test_pages_hold_every_fact_once_in_order(store, alice):
    store.add([NewFact(f"fact {i}") for i in range(7)], alice)
    texts, cursor = [], None
    while True:
        page = store.list(alice, limit=3, cursor=cursor)
        texts += [fact.text for fact in page.facts]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert texts == [f"fact {i}" for i in range(7)]


@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (-1, None), (1001, None), (5, "x"), (5, "-1"), (5, "²")])
def test_a_page_out_of_range_is_refused(store, alice, limit, cursor):
    with pytest.raises(ValueError, match=r"limit must be|cursor must be"):
        store.list(alice, limit=limit, cursor=cursor)
