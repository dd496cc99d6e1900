"""What every vector index promises; each test runs over every implementation."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.retrieval import FaissIndex, NumpyIndex, TorchIndex, torch_index

DIM = 8


def vectors(n, seed=0, dim=DIM):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def names(n, prefix="v"):
    return [f"{prefix}{i:04d}" for i in range(n)]


def by_hand(ids, rows, query, k):
    rows = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    scores = rows @ (query / np.linalg.norm(query))
    return [ids[i] for i in sorted(range(len(ids)), key=lambda i: (-scores[i], ids[i]))[:k]]


def test_search_finds_the_same_neighbours_as_brute_force(index):
    rows = vectors(300)
    index.upsert(names(300), rows, "g")
    for query in vectors(5, seed=9):
        hits = index.search(query, 7, "g")
        assert [hit.id for hit in hits] == by_hand(names(300), rows, query, 7)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    index.check_integrity()


def test_a_vector_finds_itself_with_a_cosine_of_one_whatever_its_length(index):
    rows = vectors(20) * np.logspace(-30, 30, 20, dtype=np.float32)[:, None]
    index.upsert(names(20), rows, "g")
    for id, row in zip(names(20), rows, strict=True):
        (hit,) = index.search(row, 1, "g")
        assert hit.id == id
        assert hit.score == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("k", [1, 3, 10, 11, 1000])
def test_k_results_come_if_k_exist(index, k):
    index.upsert(names(10), vectors(10), "g")
    assert len(index.search(vectors(1)[0], k, "g")) == min(k, 10)


def test_an_unknown_group_and_an_empty_index_have_no_hits(index):
    assert index.search(vectors(1)[0], 3, "nobody") == []
    index.upsert(names(3), vectors(3), "g")
    assert index.search(vectors(1)[0], 3, "nobody") == []


def test_vectors_of_another_group_never_occupy_a_slot(index):
    query = vectors(1)[0]
    index.upsert(names(50, "theirs"), np.tile(query, (50, 1)), "bob")
    index.upsert(names(5, "mine"), -np.tile(query, (5, 1)), "alice")
    assert [hit.id for hit in index.search(query, 5, "alice")] == names(5, "mine")


def test_ids_that_are_not_allowed_are_left_out_before_ranking(index):
    rows = vectors(100)
    index.upsert(names(100), rows, "g")
    allowed = names(100)[::9]
    for query in vectors(3, seed=5):
        hits = index.search(query, 4, "g", allowed=frozenset(allowed))
        assert [hit.id for hit in hits] == by_hand(allowed, rows[::9], query, 4)
    assert len(index.search(rows[1], 50, "g", allowed=set(allowed))) == len(allowed)


def test_allowed_ids_of_another_group_or_unknown_ones_are_ignored(index):
    index.upsert(["mine", "also"], vectors(2), "alice")
    index.upsert(["theirs"], vectors(1), "bob")
    assert [h.id for h in index.search(vectors(1)[0], 5, "alice", allowed=["theirs", "nothing", "also"])] == ["also"]
    assert index.search(vectors(1)[0], 5, "alice", allowed=[]) == []


def test_deleted_vectors_leave_no_ghost_slots(index):
    rows = vectors(60)
    index.upsert(names(60), rows, "g")
    query = rows[0]
    best = [hit.id for hit in index.search(query, 20, "g")]
    assert index.delete(best[:10]) == 10
    index.check_integrity()
    assert [hit.id for hit in index.search(query, 10, "g")] == best[10:]
    assert len(index) == 50
    assert best[0] not in index
    assert best[10] in index


def test_deleting_is_repeatable_and_ignores_unknown_ids(index):
    index.upsert(names(3), vectors(3), "g")
    assert index.delete(["v0001", "v0001", "nothing"]) == 1
    assert index.delete(["v0001"]) == 0
    assert index.delete(names(3)) == 2
    assert len(index) == 0
    assert index.search(vectors(1)[0], 3, "g") == []
    index.upsert(names(1), vectors(1), "g")
    assert len(index.search(vectors(1)[0], 3, "g")) == 1
    index.check_integrity()


def test_an_id_that_is_written_again_has_only_its_last_vector(index):
    rows = vectors(3)
    index.upsert(["a", "b"], rows[:2], "g")
    index.upsert(["b", "c", "c"], np.stack([rows[2], rows[0], rows[1]]), "g")
    assert len(index) == 3
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(["c", "a", "b"]), unit[[1, 0, 2]], atol=1e-6)
    index.check_integrity()


def test_an_id_that_is_written_to_another_group_moves(index):
    index.upsert(["a", "b"], vectors(2), "alice")
    index.upsert(["a"], vectors(1), "bob")
    assert [hit.id for hit in index.search(vectors(1)[0], 5, "alice")] == ["b"]
    assert [hit.id for hit in index.search(vectors(1)[0], 5, "bob")] == ["a"]
    index.check_integrity()


def test_ties_are_broken_by_id_wherever_the_rows_stand(index):
    rows = vectors(37, dim=31)
    index.upsert(names(37, "other"), rows, "g")
    tied = [f"t{i:02d}" for i in np.random.default_rng(3).permutation(41)]
    index.upsert(tied, np.tile(rows[5], (41, 1)), "g")
    hits = index.search(rows[5], 10, "g")
    assert [hit.id for hit in hits] == ["other0005", *sorted(tied)[:9]]
    assert len({hit.score for hit in hits}) == 1


def test_every_index_gives_the_same_order_and_scores():
    indexes = [NumpyIndex()]
    for package, make in (("torch", lambda: TorchIndex(device="cpu")), ("faiss", FaissIndex)):
        pytest.importorskip(package)
        indexes.append(make())
    rows = np.round(vectors(200, dim=33), 1)  # coarse values: many near-ties
    for index in indexes:
        index.upsert(names(200), rows, "g")
    first, *others = (index.search(vectors(1, seed=4, dim=33)[0], 50, "g") for index in indexes)
    assert all(other == first for other in others)


def test_a_torch_index_ranks_alike_where_the_application_lowers_the_precision_of_products():
    torch = pytest.importorskip("torch")
    exact, lowered = NumpyIndex(), TorchIndex(device="cpu")
    for index in (exact, lowered):
        index.upsert(names(300), vectors(300), "g")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        hits = lowered.search(vectors(1, seed=6)[0], 20, "g")
    finally:
        torch.set_float32_matmul_precision(before)
    assert hits == exact.search(vectors(1, seed=6)[0], 20, "g")


def test_a_torch_index_tells_how_much_memory_it_takes_and_gives_it_back():
    pytest.importorskip("torch")
    index = TorchIndex(device="cpu")
    assert index.memory_bytes() == 0
    index.upsert(names(1000), vectors(1000), "g")
    assert 1000 * DIM * 4 <= index.memory_bytes() <= 2 * 1000 * DIM * 4
    index.delete(names(990))
    assert index.memory_bytes() < 100 * DIM * 4
    index.delete(names(1000))
    assert index.memory_bytes() == 0


def test_a_faiss_device_clone_is_made_again_only_after_a_write(monkeypatch):
    faiss = pytest.importorskip("faiss")
    clones = []

    class Resources:
        def setTempMemory(self, size):
            self.size = size

    def to_device(resources, device, index):
        clones.append(index.ntotal)
        return faiss.clone_index(index)

    # Stands in for the GPU build: what is checked is when a clone is made, not what a device computes.
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_device, raising=False)
    index, reference = FaissIndex(gpu=True), NumpyIndex()
    query = vectors(1, seed=6)[0]

    def check(expected):
        for _ in range(2):
            assert index.search(query, 3, "g") == reference.search(query, 3, "g")
        assert clones == expected

    for each in (index, reference):
        each.upsert(names(50), vectors(50), "g")
    check([50])
    for each in (index, reference):
        each.delete(names(4))
    check([50, 46])
    for each in (index, reference):
        each.upsert(["v0007"], query[None], "g")
    check([50, 46, 46])
    assert index.search(query, 3, "g", names(9)) == reference.search(query, 3, "g", names(9))
    assert clones == [50, 46, 46]  # filtered searches run on the host


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused_by_name_and_nothing_is_stored(index, bad):
    rows = vectors(3)
    rows[1, 2] = bad
    with pytest.raises(InvalidInputError, match=r"'v0001' holds NaN or infinity"):
        index.upsert(names(3), rows, "g")
    assert len(index) == 0


def test_a_zero_vector_is_refused_by_name_and_nothing_is_stored(index):
    rows = vectors(3)
    rows[2] = 0
    with pytest.raises(InvalidInputError, match=r"'v0002' is zero"):
        index.upsert(names(3), rows, "g")
    assert len(index) == 0


def test_a_vector_of_another_dimension_is_refused_by_name(index):
    index.upsert(names(2), vectors(2), "g")
    with pytest.raises(InvalidInputError, match=r"'late' has 5 dimensions, want 8"):
        index.upsert(["late"], vectors(1, dim=5), "g")
    with pytest.raises(InvalidInputError, match=r"'the query' has 5 dimensions, want 8"):
        index.search(vectors(1, dim=5)[0], 1, "g")


def test_a_refused_move_leaves_the_vector_where_it_was(index):
    index.upsert(["a"], vectors(1), "alice")
    with pytest.raises(InvalidInputError, match="is zero"):
        index.upsert(["a"], np.zeros((1, DIM)), "bob")
    assert len(index.search(vectors(1)[0], 1, "alice")) == 1


def test_as_many_vectors_as_ids_are_wanted(index):
    with pytest.raises(InvalidInputError, match=r"shape \(3, 8\), want one vector for each of 2"):
        index.upsert(names(2), vectors(3), "g")
    with pytest.raises(InvalidInputError, match="not a rectangular array"):
        index.upsert(names(2), [[1.0], [1.0, 2.0]], "g")


def test_an_unusable_query_is_refused(index):
    index.upsert(names(2), vectors(2), "g")
    for query, reason in ((np.full(DIM, np.nan), "NaN"), (np.zeros(DIM), "is zero"), (vectors(2), "shape")):
        with pytest.raises(InvalidInputError, match=reason):
            index.search(query, 1, "g")


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None, "3"])
def test_a_k_that_is_not_a_positive_integer_is_refused(index, k):
    with pytest.raises(InvalidInputError, match="want a positive integer"):
        index.search(vectors(1)[0], k, "g")


def test_the_vector_of_an_unknown_id_is_a_named_key_error(index):
    index.upsert(names(2), vectors(2), "g")
    with pytest.raises(KeyError, match="ghost"):
        index.vectors(["v0000", "ghost"])
    assert index.vectors([]).shape == (0, DIM)


def test_vectors_handed_out_are_copies(index):
    index.upsert(names(1), vectors(1), "g")
    index.vectors(names(1))[:] = 0
    index.check_integrity()


def test_vectors_handed_in_may_be_changed_afterwards(index):
    rows = vectors(3)
    query = rows[1].copy()
    index.upsert(names(3), rows, "g")
    rows[:] = 7
    assert index.search(query, 1, "g")[0].id == "v0001"


def test_no_vectors_are_no_work(index):
    index.upsert([], np.empty((0, DIM), dtype=np.float32), "g")
    index.upsert([], [], "g")
    assert index.delete([]) == 0
    assert len(index) == 0


def test_damage_is_noticed(index):
    index.upsert(names(3), vectors(3), "g")
    index._groups["g"].rows.remove(0)
    with pytest.raises(StoreError, match="2 rows for 3 ids"):
        index.check_integrity()


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), st.lists(st.integers(0, 40), max_size=30), st.sampled_from("ab")),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_any_history_of_writes_leaves_what_a_dictionary_would_hold(new_index, steps, seed):
    index, model = new_index(), {}
    for number, (action, members, group) in enumerate(steps):
        ids = [f"i{m}" for m in members]
        if action == "put":
            rows = vectors(len(ids), seed=seed + number)
            index.upsert(ids, rows, group)
            model.update({id: (group, row) for id, row in zip(ids, rows, strict=True)})
        else:
            assert index.delete(ids) == len(set(ids) & set(model))
            model = {id: entry for id, entry in model.items() if id not in ids}
        index.check_integrity()
    assert len(index) == len(model)
    query = vectors(1, seed=seed)[0]
    for group in "ab":
        held = [id for id, entry in model.items() if entry[0] == group]
        rows = np.array([model[id][1] for id in held]).reshape(-1, DIM)
        assert [hit.id for hit in index.search(query, 5, group)] == by_hand(held, rows, query, 5)


def test_searches_during_writes_see_each_write_whole(index):
    pairs = [(f"left{i}", f"right{i}") for i in range(40)]
    rows = vectors(2)
    anchor = vectors(1, seed=8)[0]
    index.upsert(["anchor"], anchor[None], "g")
    problems, stop = [], threading.Event()

    def write(mine):
        try:
            for _ in range(5):
                for pair in mine:
                    index.upsert(list(pair), rows, "g")
                for pair in mine:
                    index.delete(list(pair))
        except Exception as error:
            problems.append(error)

    def read():
        try:
            while not stop.is_set():
                ids = {hit.id for hit in index.search(anchor, 500, "g")}
                if "anchor" not in ids or any((left in ids) != (right in ids) for left, right in pairs):
                    problems.append(ids)
        except Exception as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(pairs[i::4],)) for i in range(4)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not problems
    index.check_integrity()
    assert len(index) == 1


@pytest.fixture(params=["numpy", "torch", "torch, together", "faiss"])
def any_index(request):
    made = {"numpy": NumpyIndex, "torch": lambda: TorchIndex("cpu"), "faiss": FaissIndex}
    made["torch, together"] = lambda: TorchIndex("cpu", together=True)
    return made[request.param]()


def filled(index, sizes):
    for number, size in enumerate(sizes):
        index.upsert(names(size, f"g{number}-"), vectors(size, seed=number), f"g{number}")
    return index


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), k=st.integers(1, 12), data=st.data())
def test_many_searches_at_once_find_what_each_would_alone(any_index, sizes, k, data):
    for number in range(len(any_index) and 6):
        any_index.delete(names(40, f"g{number}-"))
    filled(any_index, sizes)
    asked = data.draw(st.lists(st.integers(0, len(sizes)), max_size=8))  # one group is unknown
    limits = [
        data.draw(st.none() | st.lists(st.sampled_from([*names(40, f"g{number}-"), "nothing"]), max_size=9))
        for number in asked
    ]
    queries, groups = vectors(len(asked), seed=99), [f"g{number}" for number in asked]
    together = any_index.search_many(queries, k, groups, limits)
    assert together == [any_index.search(*one) for one in zip(queries, [k] * len(asked), groups, limits, strict=True)]


def test_equal_vectors_are_ranked_by_id_in_many_searches_too(any_index):
    row = vectors(1)
    any_index.upsert(names(30), np.repeat(row, 30, axis=0), "a")
    any_index.upsert(names(30, "w"), np.repeat(row, 30, axis=0), "b")
    first, second = any_index.search_many(np.repeat(row, 2, axis=0), 4, ["a", "b"])
    assert [hit.id for hit in first] == names(4)
    assert [hit.id for hit in second] == names(4, "w")


def test_many_searches_need_one_group_each(any_index):
    with pytest.raises(InvalidInputError, match="got 2 vectors, 1 groups and 1 sets of allowed ids"):
        any_index.search_many(vectors(2), 3, ["g"])


def test_many_searches_name_the_query_that_cannot_be_used():
    index = filled(TorchIndex("cpu", together=True), [3])
    queries = vectors(2)
    queries[1] = 0.0
    with pytest.raises(InvalidInputError, match="'query 1' is zero"):
        index.search_many(queries, 3, ["g0", "g0"])


def operations(index, groups):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Counting.count += 1
            return function(*args, **(kwargs or {}))

    with Counting():
        index.search_many(vectors(len(groups)), 5, groups)
    return Counting.count


def test_together_thirty_groups_take_as_many_operations_as_three():
    index = filled(TorchIndex("cpu", together=True), [20] * 30)
    three, thirty = (operations(index, [f"g{number}" for number in range(count)]) for count in (3, 30))
    # Looking at the rows that count is a view of each group, which launches nothing.
    assert thirty - three == 27
    assert operations(filled(TorchIndex("cpu"), [20] * 30), [f"g{number}" for number in range(30)]) > 2 * thirty


def test_together_more_rows_than_are_copied_at_a_time_are_searched_in_parts(monkeypatch):
    monkeypatch.setattr(torch_index, "TOGETHER_ROWS", 50)
    index = filled(TorchIndex("cpu", together=True), [30, 40, 5, 120, 5])
    groups = [f"g{number}" for number in range(5)]
    queries = vectors(5, seed=3)
    assert index.search_many(queries, 7, groups) == [
        index.search(query, 7, group) for query, group in zip(queries, groups, strict=True)
    ]
