"""What ``Retriever.search`` promises."""

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError
from inferscale_memory.retrieval import EmbeddingError, NumpyIndex, Retriever
from inferscale_memory.scope import Scope

PETS = ("Rex is a brown dog", "the cat sleeps on the sofa", "tea is better than coffee", "the train leaves at nine")


def texts(found):
    return [scored.fact.text for scored in found]


def test_the_best_answer_comes_first(retriever, save, alice):
    save(alice, *PETS)
    found = retriever.search("which brown dog is Rex", alice, 4)
    assert texts(found)[0] == PETS[0]
    assert [s.score for s in found] == sorted((s.score for s in found), reverse=True)
    assert sorted(texts(found)) == sorted(PETS)


def test_every_index_serves_the_retriever_alike(store, embedder, save, alice, index):
    save(alice, *PETS)
    reference = Retriever(store, embedder, NumpyIndex()).search("the brown sofa", alice, 4)
    assert Retriever(store, embedder, index).search("the brown sofa", alice, 4) == reference


def test_facts_that_have_just_been_saved_are_found(retriever, save, alice):
    save(alice, PETS[0])
    assert len(retriever.search("dog", alice, 5)) == 1
    save(alice, PETS[1])
    assert len(retriever.search("dog", alice, 5)) == 2


def test_without_fresh_only_what_is_indexed_is_searched(retriever, save, alice):
    save(alice, PETS[0])
    assert retriever.search("dog", alice, 5, fresh=False) == []
    retriever.sync()
    assert len(retriever.search("dog", alice, 5, fresh=False)) == 1


def test_another_users_facts_never_occupy_a_slot(retriever, save, alice):
    save(Scope.of(user_id="bob"), *[f"brown dog number {i}" for i in range(30)])
    save(alice, *PETS)
    assert sorted(texts(retriever.search("brown dog number", alice, 4))) == sorted(PETS)


def test_the_same_session_id_of_two_users_is_not_shared(retriever, save):
    save(Scope.of(user_id="bob", session_id="s1"), PETS[0])
    assert retriever.search("dog", Scope.of(user_id="alice", session_id="s1"), 3) == []


def test_the_same_user_id_of_two_tenants_is_not_shared(retriever, save):
    save(Scope.of(user_id="alice", tenant_id="one"), PETS[0])
    assert retriever.search("dog", Scope.of(user_id="alice", tenant_id="two"), 3) == []


def test_a_session_sees_its_facts_and_those_of_no_session_before_ranking(retriever, save, alice):
    here = Scope.of(user_id="alice", session_id="here")
    save(Scope.of(user_id="alice", session_id="elsewhere"), *[f"brown dog number {i}" for i in range(30)])
    save(here, PETS[1])
    save(alice, PETS[2])
    assert sorted(texts(retriever.search("brown dog", here, 2))) == sorted(PETS[1:3])
    assert len(retriever.search("brown dog", alice, 50)) == 32


def test_user_and_agent_together_find_what_either_scope_covers(retriever, save, alice):
    both = Scope.of(user_id="alice", agent_id="cook")
    save(both, PETS[0])
    save(alice, PETS[1])
    save(Scope.of(user_id="alice", agent_id="driver"), PETS[3])
    assert sorted(texts(retriever.search("dog", both, 9))) == sorted(PETS[:2])


def test_deleting_the_best_hit_still_gives_k_results(retriever, store, save, alice):
    ids = save(alice, *[f"dog {name}" for name in ("Rex", "Fido", "Bello", "Lassie", "Laika")])
    first = retriever.search("dog Rex", alice, 3)
    assert first[0].fact.id == ids[0]
    store.delete(ids[0], alice)
    again = retriever.search("dog Rex", alice, 3)
    assert ids[0] not in [s.fact.id for s in again]
    assert len(again) == 3


def test_facts_deleted_by_another_process_take_no_slot_even_before_a_sync(retriever, open_store, save, alice):
    ids = save(alice, *[f"dog {i} {'w' * i}" for i in range(40)])
    retriever.sync()
    other = open_store()
    for id in ids[:35]:
        other.delete(id, alice)
    found = retriever.search("dog", alice, 5, fresh=False)
    assert sorted(s.fact.id for s in found) == sorted(ids[35:])


def test_a_fact_updated_while_it_is_searched_is_found_with_its_new_text(retriever, store, save, alice, monkeypatch):
    (id,) = save(alice, "Rex is brown")
    retriever.sync()
    read = store.get_many
    updates = iter([lambda: store.update(id, alice, text="Rex is black")])

    def get_many(ids):
        next(updates, lambda: None)()
        return read(ids)

    monkeypatch.setattr(store, "get_many", get_many)
    assert texts(retriever.search("Rex", alice, 1)) == ["Rex is black"]


def test_near_duplicates_take_one_slot_and_are_on_record(retriever, save, alice):
    long = "alice moved to the old town of Bern in the spring of last year with her two cats and the piano"
    a, b, c = save(alice, long, long + ".", long.replace("moved", "moved,"))
    save(alice, *PETS)
    found = retriever.search("alice moved to Bern", alice, 5)
    assert len(found) == 5
    assert {found[0].fact.id, *found[0].duplicates} == {a, b, c}
    assert all(s.duplicates == () for s in found[1:])
    assert len(retriever.store.get_many([a, b, c])) == 3


def test_the_best_ranked_of_near_duplicates_stays(retriever, save, alice):
    stem = "alice moved to the old town of Bern in the spring of last year with two cats and a piano"
    plain, exact = save(alice, stem, stem + " yesterday")
    (found,) = retriever.search(stem + " yesterday", alice, 1)
    assert found.fact.id == exact
    assert found.duplicates == (plain,)


def test_merging_near_duplicates_can_be_turned_off_or_set(store, embedder, save, alice):
    save(alice, "the cat sat", "the cat sat.", "the cat sat down")
    assert len(Retriever(store, embedder, NumpyIndex(), near_duplicate=None).search("cat", alice, 9)) == 3
    assert len(Retriever(store, embedder, NumpyIndex(), near_duplicate=1.0).search("cat", alice, 9)) == 2
    assert len(Retriever(store, embedder, NumpyIndex(), near_duplicate=0.5).search("cat", alice, 9)) == 1


def test_many_duplicates_do_not_crowd_out_the_k_results(retriever, save, alice):
    save(alice, *["Rex is a dog" + "." * i for i in range(1, 60)])
    save(alice, *PETS[1:])
    found = retriever.search("Rex is a dog", alice, 4)
    assert len(found) == 4
    assert len(found[0].duplicates) == 58


def test_only_facts_above_the_threshold_are_returned(retriever, save, alice):
    save(alice, *PETS)
    scores = [s.score for s in retriever.search("brown dog", alice, 4)]
    found = retriever.search("brown dog", alice, 4, threshold=scores[1])
    assert [s.score for s in found] == scores[:2]
    assert retriever.search("brown dog", alice, 4, threshold=1.0) == []


def test_a_scope_without_facts_has_no_results(retriever, alice):
    assert retriever.search("dog", alice, 3) == []


@pytest.mark.parametrize("query", ["", "  \n\t", "　", None])
def test_a_blank_query_is_refused(retriever, alice, query):
    with pytest.raises(InvalidInputError, match="query is blank"):
        retriever.search(query, alice, 3)


def test_a_query_with_a_lone_surrogate_is_refused(retriever, alice):
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        retriever.search("dog \ud800", alice, 3)


@pytest.mark.parametrize("k", [0, -2, True, 2.0])
def test_a_k_that_is_not_positive_is_refused(retriever, alice, k):
    with pytest.raises(InvalidInputError, match="positive integer"):
        retriever.search("dog", alice, k)


@pytest.mark.parametrize("threshold", [1.5, -2.0, float("nan")])
def test_a_threshold_that_is_no_cosine_is_refused(retriever, alice, threshold):
    with pytest.raises(InvalidInputError, match="threshold"):
        retriever.search("dog", alice, 3, threshold=threshold)


@pytest.mark.parametrize("cosine", [0.0, -0.1, 1.1, float("nan")])
def test_a_near_duplicate_limit_that_is_no_cosine_is_refused(store, embedder, cosine):
    with pytest.raises(InvalidInputError, match="near_duplicate"):
        Retriever(store, embedder, NumpyIndex(), near_duplicate=cosine)


def test_an_index_that_somebody_filled_is_refused(store, embedder):
    index = NumpyIndex()
    index.upsert(["x"], [[1.0, 2.0]], "g")
    with pytest.raises(InvalidInputError, match="already holds 1 vectors"):
        Retriever(store, embedder, index)


def test_an_embedder_that_fails_on_the_query_is_a_clear_error(retriever, embedder, save, alice):
    save(alice, *PETS)
    embedder.poison = {"dragon"}
    with pytest.raises(EmbeddingError, match=r"query could not be embedded.*cannot digest 'a dragon'"):
        retriever.search("a dragon", alice, 2)
    assert len(retriever.search("dog", alice, 2)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "我最喜欢的颜色是蓝色",
        "猫が好きです",
        "나는 서울에 산다",
        "أنا أسكن في القاهرة",
        "cafe\u0301 und Kaffee",
        "naïve 🦊 fox",
    ],
)
def test_text_in_any_script_is_found_and_returned_as_it_was(retriever, save, alice, text):
    save(alice, *PETS, text)
    assert retriever.search(text, alice, 1)[0].fact.text == text


WORD = st.sampled_from(["dog", "cat", "tea", "train", "sofa", "brown", "nine"])
WORDS = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(saved=st.lists(WORDS, max_size=8), doomed=st.sets(st.integers(0, 7)), query=WORDS, k=st.integers(1, 10))
def test_after_any_saves_and_deletes_k_results_come_if_k_exist(store, embedder, save, saved, doomed, query, k):
    scope = Scope.of(user_id=uuid.uuid4().hex)
    retriever = Retriever(store, embedder, NumpyIndex(), near_duplicate=None)
    left = set(save(scope, *saved)) if saved else set()
    retriever.sync()
    for id in [id for place, id in enumerate(sorted(left)) if place in doomed]:
        store.delete(id, scope)
        left.discard(id)
    found = retriever.search(query, scope, k)
    assert len(found) == min(k, len(left))
    assert {s.fact.id for s in found} <= left
    retriever.check_integrity()


def test_an_excluded_fact_takes_no_slot(retriever, save, alice):
    ids = save(alice, *PETS)
    best = retriever.search("which brown dog is Rex", alice, 4)
    rest = retriever.search("which brown dog is Rex", alice, 3, exclude=[ids[0]])
    assert [scored.fact.id for scored in rest] == [scored.fact.id for scored in best[1:]]


def test_k_facts_come_however_many_better_ones_are_excluded(retriever, save, alice):
    ids = save(alice, *[f"brown dog number {i}" for i in range(60)], *PETS)
    found = retriever.search("brown dog number", alice, 4, exclude=set(ids[:60]))
    assert sorted(texts(found)) == sorted(PETS)


def test_a_fact_is_found_though_what_it_nearly_repeats_is_excluded(retriever, save, alice):
    first, second = save(alice, "Rex is a brown dog", "Rex is a brown dog!")
    [found] = retriever.search("brown dog", alice, 2, exclude=[first])
    assert found.fact.id == second
    assert found.duplicates == ()


@pytest.mark.parametrize("exclude", ["an id as it stands", b"bytes", 3])
def test_what_is_no_collection_of_ids_is_not_excluded_in_silence(retriever, save, alice, exclude):
    save(alice, PETS[0])
    with pytest.raises(InvalidInputError, match="wanted a collection of fact ids"):
        retriever.search("dog", alice, 1, exclude=exclude)
