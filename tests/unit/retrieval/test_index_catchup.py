"""What ``Retriever.sync`` promises: the index follows the store, whoever writes to it."""

import threading

import numpy as np

from inferscale_memory.errors import StoreError
from inferscale_memory.retrieval import CallableEmbedder, NumpyIndex, Retriever, keeper
from inferscale_memory.scope import Scope


def facts(n):
    return [f"fact number {i} about thing{i}" for i in range(n)]


def test_each_fact_is_embedded_once(retriever, embedder, save, alice):
    save(alice, *facts(5))
    assert retriever.sync() == 5
    assert retriever.sync() == 0
    assert sorted(embedder.seen) == sorted(facts(5))
    assert len(retriever.index) == 5


def test_a_restart_embeds_nothing_again(open_store, new_embedder, save, alice, retriever):
    save(alice, *facts(5))
    before = retriever.search("thing3", alice, 5)
    second = new_embedder()
    restarted = Retriever(open_store(), second, NumpyIndex())
    assert restarted.search("thing3", alice, 5) == before
    assert second.seen == ["thing3"]


def test_another_embedder_does_not_get_the_vectors_of_the_first(store, save, alice, retriever):
    save(alice, *facts(3))
    retriever.sync()
    other = CallableEmbedder(lambda texts: np.eye(len(texts), 5) + 1.0, id="other@1", dim=5)
    changed = Retriever(store, other, NumpyIndex())
    changed.sync()
    assert changed.index.dim == 5
    assert len(changed.index) == 3


def test_a_vector_that_is_damaged_in_the_store_is_embedded_again(store, embedder, save, alice, retriever):
    ids = save(alice, *facts(3))
    retriever.sync()
    broken = [np.full(embedder.dim, np.nan, np.float32).tobytes(), np.ones(3, np.float32).tobytes()]
    store.put_vectors(embedder.id, [(id, 1, data) for id, data in zip(ids, broken, strict=False)])
    embedder.seen.clear()
    restarted = Retriever(store, embedder, NumpyIndex())
    restarted.sync()
    assert sorted(embedder.seen) == sorted(facts(3)[:2])
    assert len(restarted.index) == 3


def test_writes_of_another_process_are_followed(retriever, open_store, save, alice):
    a, b = save(alice, "the first fact", "the second fact")
    retriever.sync()
    other = open_store()
    other.delete(a, alice)
    other.update(b, alice, text="a fact renewed")
    retriever.sync()
    assert [s.fact.text for s in retriever.search("fact", alice, 5, fresh=False)] == ["a fact renewed"]
    retriever.check_integrity()


def test_more_changes_than_a_page_are_followed(retriever, store, save, alice, monkeypatch):
    monkeypatch.setattr(keeper, "CHANGE_PAGE", 7)
    ids = save(alice, *facts(30))
    for id in ids[::3]:
        store.delete(id, alice)
    retriever.sync()
    assert len(retriever.index) == 20
    retriever.check_integrity()


def test_a_failing_fact_is_parked_with_its_reason_and_stops_no_other(retriever, embedder, save, alice):
    embedder.poison = {"thing4"}
    ids = save(alice, *facts(10))
    retriever.sync()
    assert list(retriever.failures) == [ids[4]]
    assert "cannot digest 'fact number 4 about thing4'" in retriever.failures[ids[4]].reason
    assert len(retriever.search("fact", alice, 20)) == 9
    retriever.check_integrity()


def test_a_vector_without_direction_parks_only_its_fact(retriever, save, alice):
    mute, _ = save(alice, "!!! ???", "a fact with words")
    retriever.sync()
    assert "is zero" in retriever.failures[mute].reason
    assert len(retriever.index) == 1


def test_an_embedder_that_returns_too_few_vectors_parks_what_it_loses(store, save, alice):
    save(alice, *facts(3))
    lossy = CallableEmbedder(lambda texts: [[1.0, 2.0]] * (len(texts) - 1), id="lossy", dim=2)
    retriever = Retriever(store, lossy, NumpyIndex())
    retriever.sync()
    assert len(retriever.failures) == 3
    assert all("want one vector for each of 1" in f.reason for f in retriever.failures.values())


def test_a_parked_fact_is_tried_again_after_a_pause_that_grows(retriever, embedder, save, alice, clock):
    embedder.poison = {"thing0"}
    (id,) = save(alice, *facts(1))
    retriever.sync()
    embedder.seen.clear()
    retriever.sync()
    assert embedder.seen == []  # not due yet
    clock.now = 1.0
    retriever.sync()
    assert embedder.seen
    assert (retriever.failures[id].attempts, retriever.failures[id].retry_at) == (2, 3.0)
    embedder.poison = set()
    clock.now = 3.0
    retriever.sync()
    assert retriever.failures == {}
    assert len(retriever.index) == 1


def test_a_parked_fact_is_tried_at_once_when_its_text_changes(retriever, embedder, store, save, alice):
    embedder.poison = {"thing0"}
    (id,) = save(alice, *facts(1))
    retriever.sync()
    store.update(id, alice, text="harmless")
    retriever.sync()
    assert retriever.failures == {}
    assert id in retriever.index


def test_deleting_a_parked_fact_clears_it(retriever, embedder, store, save, alice):
    embedder.poison = {"thing0"}
    (id,) = save(alice, *facts(1))
    retriever.sync()
    store.delete(id, alice)
    retriever.sync()
    assert retriever.failures == {}


def test_a_fact_whose_new_text_cannot_be_embedded_is_not_found_by_its_old_one(retriever, embedder, store, save, alice):
    (id,) = save(alice, "Rex is brown")
    retriever.sync()
    embedder.poison = {"black"}
    store.update(id, alice, text="Rex is black")
    assert retriever.search("Rex is brown", alice, 1) == []
    assert list(retriever.failures) == [id]


def test_a_forgotten_fact_leaves_the_index_at_once(retriever, store, save, alice):
    a, _ = save(alice, *facts(2))
    retriever.sync()
    store.delete(a, alice)
    retriever.forget([a, "unknown"])
    assert a not in retriever.index
    assert retriever.sync() >= 1
    assert len(retriever.index) == 1
    retriever.check_integrity()


def test_a_fact_forgotten_by_mistake_comes_back(retriever, save, alice):
    (a,) = save(alice, *facts(1))
    retriever.sync()
    retriever.forget([a])
    assert len(retriever.search("fact", alice, 1)) == 1


def test_a_fact_deleted_while_it_is_embedded_does_not_come_back(store, save, alice, embedder):
    (a,) = save(alice, *facts(1))
    plain = embedder._fn

    def delete_meanwhile(texts):
        if retriever.store.get(a, alice):
            retriever.store.delete(a, alice)
            retriever.forget([a])
        return plain(texts)

    embedder._fn = delete_meanwhile
    retriever = Retriever(store, embedder, NumpyIndex())
    retriever.sync()
    assert len(retriever.index) == 0
    assert store.get_vectors(embedder.id, [a]) == {}
    retriever.check_integrity()


def test_vectors_that_cannot_be_kept_are_used_and_made_again_by_the_next_process(
    retriever, embedder, store, save, alice, monkeypatch, caplog
):
    save(alice, *facts(4))
    with monkeypatch.context() as patch:

        def full(*_):
            raise StoreError("disk full")

        patch.setattr(store, "put_vectors", full)
        assert len(retriever.search("fact", alice, 9)) == 4
    assert "the vectors of 4 facts could not be kept: disk full" in caplog.text
    assert len(Retriever(store, embedder, NumpyIndex()).search("fact", alice, 9)) == 4
    assert len(store.get_vectors(embedder.id, [fact.id for fact in store.list(alice).facts])) == 4


def test_saves_deletes_and_searches_from_many_threads_end_in_step(retriever, store, save, alice):
    problems = []

    def work(number):
        scope = Scope.of(user_id=f"user{number % 3}")
        try:
            for turn in range(4):
                keep, drop = save(scope, f"kept n{number} t{turn}", f"dropped n{number} t{turn}")
                retriever.search("kept", scope, 5)
                store.delete(drop, scope)
                retriever.forget([drop])
                found = {s.fact.id for s in retriever.search(f"kept n{number} t{turn}", scope, 50)}
                if keep not in found or drop in found:
                    problems.append((number, turn))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    retriever.sync()
    retriever.check_integrity()
    assert len(retriever.index) == 24
