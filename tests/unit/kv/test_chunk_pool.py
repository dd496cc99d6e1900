from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from inferscale_memory.errors import InvalidInputError, StoreError
from inferscale_memory.kv import ChunkPool, PutResult

torch = pytest.importorskip("torch")


@pytest.fixture
def size(make_chunk) -> int:
    return make_chunk().footprint


def test_a_chunk_put_is_the_chunk_got(make_chunk, size):
    pool, chunk = ChunkPool(size), make_chunk()
    assert pool.put(chunk) == PutResult(stored=True, evicted=())
    assert pool.get(chunk.key) is chunk
    assert pool.used_bytes == size


def test_a_missing_chunk_is_none(make_chunk):
    assert ChunkPool(10).get(make_chunk().key) is None


def test_the_budget_is_exact_to_the_byte(make_chunk, size):
    fits, short = ChunkPool(2 * size), ChunkPool(2 * size - 1)
    for pool in (fits, short):
        pool.put(make_chunk(0))
        pool.put(make_chunk(1))
        pool.check_integrity()
    assert (len(fits), len(short)) == (2, 1)


def test_the_least_recently_used_goes_first_and_is_reported(make_chunk, size):
    pool = ChunkPool(3 * size)
    first, second, third, fourth = chunks = [make_chunk(i) for i in range(4)]
    for chunk in chunks[:3]:
        pool.put(chunk)
    pool.get(first.key)
    assert pool.put(fourth).evicted == (second.key,)
    assert pool.keys() == (third.key, first.key, fourth.key)


def test_asking_whether_a_chunk_exists_is_no_use_of_it(make_chunk, size):
    pool = ChunkPool(2 * size)
    pool.put(make_chunk(0))
    pool.put(make_chunk(1))
    assert pool.exists(make_chunk(0).key)
    assert pool.put(make_chunk(2)).evicted == (make_chunk(0).key,)


def test_a_chunk_larger_than_the_budget_is_refused_and_evicts_nothing(make_chunk, size):
    pool = ChunkPool(size)
    pool.put(make_chunk(0))
    assert pool.put(make_chunk(1, shape=(2, 4, 2, 4))) == PutResult(stored=False)
    assert pool.keys() == (make_chunk(0).key,)


def test_a_pool_of_zero_bytes_keeps_nothing(make_chunk):
    assert not ChunkPool(0).put(make_chunk()).stored


def test_a_negative_budget_is_refused():
    with pytest.raises(InvalidInputError, match="capacity_bytes is -1"):
        ChunkPool(-1)


def test_putting_a_key_again_replaces_it_and_counts_once(make_chunk, size):
    pool, chunk = ChunkPool(size), make_chunk()
    pool.put(chunk)
    again = replace(chunk, keys=chunk.keys.clone())
    assert pool.put(again).evicted == ()
    assert pool.get(chunk.key) is again
    assert pool.used_bytes == size


def test_a_chunk_of_another_model_is_not_found(make_chunk, model, other_model, size):
    pool, chunk = ChunkPool(size), make_chunk()
    pool.put(chunk)
    assert pool.find(chunk.key, other_model) is None
    assert pool.find(chunk.key, model) is chunk


def test_a_slice_of_a_large_buffer_is_copied_so_that_the_buffer_can_go(make_chunk, size):
    pool, chunk = ChunkPool(size), make_chunk()
    buffer = torch.zeros(1 << 20, dtype=torch.bfloat16)
    cut = replace(chunk, values=buffer[: chunk.values.numel()].view(chunk.values.shape))
    assert pool.put(cut).stored
    assert pool.used_bytes == size


def test_evicted_chunks_are_counted_and_unknown_keys_ignored(make_chunk, size):
    pool = ChunkPool(3 * size)
    keys = [make_chunk(i).key for i in range(3)]
    for i in range(2):
        pool.put(make_chunk(i))
    assert pool.evict(keys) == 2
    assert pool.delete(keys) == 0
    assert pool.used_bytes == 0
    pool.check_integrity()


def test_a_sweep_drops_what_is_not_to_be_kept_volatile_or_not(make_chunk, size):
    pool = ChunkPool(3 * size)
    first, second, third = (make_chunk(i) for i in range(3))
    pool.put(first)
    pool.put(second, volatile=True)
    pool.put(third, volatile=True)
    assert pool.is_volatile(second.key)
    assert not pool.is_volatile(first.key)
    assert set(pool.sweep(lambda key: key == third.key)) == {first.key, second.key}
    assert pool.keys() == (third.key,)
    assert not pool.is_volatile(second.key)
    pool.check_integrity()


def test_a_chunk_held_by_a_reader_outlives_its_eviction(make_chunk, same, size):
    pool = ChunkPool(size)
    pool.put(make_chunk(0))
    held = pool.get(make_chunk(0).key)
    pool.put(make_chunk(1))
    pool.clear()
    same(held, make_chunk(0))


def test_books_that_are_wrong_are_noticed(make_chunk, size):
    pool = ChunkPool(size)
    pool.put(make_chunk())
    pool._used -= 1
    with pytest.raises(StoreError, match=f"say {size - 1} bytes, content is {size}"):
        pool.check_integrity()


def test_twenty_thousand_random_steps_keep_the_books_and_the_budget(make_chunk):
    rng = random.Random(0)
    chunks = [make_chunk(i, shape=(1, 1 + i % 5, 1, 2)) for i in range(64)]
    pool = ChunkPool(sum(chunk.footprint for chunk in chunks) // 3)
    resident: set[str] = set()
    for step in range(20_000):
        chunk = rng.choice(chunks)
        action = rng.random()
        if action < 0.5:
            result = pool.put(chunk, volatile=rng.random() < 0.2)
            resident.difference_update(result.evicted)
            resident.add(chunk.key)
        elif action < 0.9:
            assert (pool.get(chunk.key) is chunk) == (chunk.key in resident)
        elif action < 0.99:
            pool.evict([chunk.key])
            resident.discard(chunk.key)
        else:
            resident.difference_update(pool.sweep(lambda _: rng.random() < 0.5))
        if step % 100 == 0:
            pool.check_integrity()
            assert resident == set(pool.keys())
    pool.clear()
    pool.check_integrity()
    assert pool.used_bytes == 0


def test_threads_do_not_disturb_the_books(make_chunk):
    chunks = [make_chunk(i) for i in range(16)]
    pool = ChunkPool(5 * chunks[0].footprint)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(800):
                chunk = rng.choice(chunks)
                rng.choice((pool.put, lambda c: pool.get(c.key), lambda c: pool.evict([c.key])))(chunk)
                pool.check_integrity()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
