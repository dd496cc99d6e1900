"""The device tier: what lies where, what may move, and what is left of what has gone."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from inferscale_memory.errors import InvalidInputError, StoreError  # noqa: E402
from inferscale_memory.kv.arena import Arena  # noqa: E402

TOKENS = 3  # of one chunk of `make_chunk`
LAYERS = ("layers.0.attn", "layers.1.attn")
TOKEN_BYTES = 2 * 2 * 2 * 4 * 2  # keys and values, layers, heads, head size, bf16


def arena_of(tokens: int) -> Arena:
    return Arena(LAYERS, 2, 4, torch.bfloat16, torch.device("cpu"), tokens * TOKEN_BYTES)


def test_the_budget_is_respected_to_the_byte():
    arena = Arena(LAYERS, 2, 4, torch.bfloat16, torch.device("cpu"), 10 * TOKEN_BYTES + TOKEN_BYTES - 1)
    assert (arena.capacity_tokens, arena.bytes_per_token) == (10, TOKEN_BYTES)
    assert arena.nbytes == 10 * TOKEN_BYTES
    assert arena.keys.untyped_storage().nbytes() + arena.values.untyped_storage().nbytes() == arena.nbytes


def test_a_budget_below_one_token_is_refused():
    with pytest.raises(InvalidInputError, match=f"one token of this model takes {TOKEN_BYTES}"):
        Arena(LAYERS, 2, 4, torch.bfloat16, torch.device("cpu"), TOKEN_BYTES - 1)


def test_one_list_of_slots_gathers_several_chunks_in_every_layer(make_chunk):
    arena = arena_of(20)
    chunks = [make_chunk(number) for number in range(4)]
    for chunk in chunks:
        arena.put(chunk)
    arena.delete([chunks[1].key])
    wanted = [chunks[3], chunks[0], chunks[2], chunks[0]]
    slots = np.concatenate([arena.locate(chunk.key).slots for chunk in wanted])
    keys = arena.keys.index_select(1, torch.from_numpy(slots))
    assert torch.equal(keys, torch.cat([chunk.keys for chunk in wanted], dim=1))
    assert arena.locate(chunks[3].key).tokens.tolist() == list(chunks[3].token_ids)


def test_a_chunk_in_pieces_comes_back_whole(make_chunk, same, model):
    arena = arena_of(3 * TOKENS)
    for number in range(3):
        arena.put(make_chunk(number))
    arena.delete([make_chunk(0).key, make_chunk(2).key])
    long = make_chunk(7, shape=(2, 2 * TOKENS, 2, 4))
    assert arena.put(long).stored
    assert len(arena.locate(long.key).extents) == 2
    same(arena.find(long.key, model), long)
    arena.check_integrity()


def test_the_least_recently_used_make_room(make_chunk):
    arena = arena_of(3 * TOKENS)
    for number in range(3):
        arena.put(make_chunk(number))
    arena.locate(make_chunk(0).key)
    assert arena.put(make_chunk(3)).evicted == (make_chunk(1).key,)
    assert make_chunk(0).key in arena


def test_what_is_larger_than_the_arena_is_refused_and_nothing_leaves_for_it(make_chunk):
    arena = arena_of(2 * TOKENS)
    arena.put(make_chunk(0))
    assert not arena.put(make_chunk(1, shape=(2, 2 * TOKENS + 1, 2, 4))).stored
    assert make_chunk(0).key in arena


@pytest.mark.parametrize("shape", [(3, TOKENS, 2, 4), (2, TOKENS, 1, 4), (2, TOKENS, 2, 8)])
def test_a_chunk_of_another_shape_is_refused(make_chunk, shape):
    assert not arena_of(10).put(make_chunk(shape=shape)).stored


def test_a_chunk_of_another_dtype_is_refused(make_chunk):
    assert not arena_of(10).put(make_chunk(dtype=torch.float16)).stored


def test_what_is_held_stays_and_a_chunk_that_would_need_its_place_is_refused(make_chunk, same, model):
    arena = arena_of(2 * TOKENS)
    first, second, third = (make_chunk(number) for number in range(3))
    arena.put(first)
    arena.put(second)
    with arena.hold():
        arena.locate(first.key)
        arena.locate(second.key)
        assert not arena.put(third).stored
        same(arena.find(first.key, model), first)
    assert arena.put(third).evicted == (second.key,)
    arena.check_integrity()


def test_what_is_deleted_while_held_is_a_miss_at_once_and_overwritten_afterwards(make_chunk):
    arena = arena_of(2 * TOKENS)
    chunk = make_chunk()
    arena.put(chunk)
    with arena.hold():
        rows = torch.from_numpy(arena.locate(chunk.key).slots)
        assert arena.delete([chunk.key]) == 1
        assert chunk.key not in arena
        assert torch.equal(arena.keys[:, rows], chunk.keys), "a gather that is under way reads what it located"
        arena.check_integrity()
    assert not arena.keys[:, rows].any()
    assert arena.used_tokens == 0
    arena.check_integrity()


@pytest.mark.parametrize("leave", ["delete", "evict", "sweep", "clear", "replace"])
def test_nothing_is_left_of_what_has_gone(make_chunk, leave):
    arena = arena_of(TOKENS + 1)
    arena.put(make_chunk(0))
    short = make_chunk(1, shape=(2, 1, 2, 4))
    rows = torch.from_numpy(arena.locate(make_chunk(0).key).slots)
    old = arena.keys[:, rows].clone()
    if leave == "delete":
        arena.delete([make_chunk(0).key])
    elif leave == "evict":
        arena.put(make_chunk(2, shape=(2, 2, 2, 4)))
    elif leave == "sweep":
        assert arena.sweep(lambda key: False) == (make_chunk(0).key,)
    elif leave == "clear":
        arena.clear()
    else:
        arena.put(make_chunk(0))
        arena.put(short)
        arena.delete([make_chunk(0).key])
    assert not (arena.keys[:, rows] == old).all(dim=(0, 2, 3)).any(), "in no row"
    assert not (arena.values[:, rows[-1:]] != 0).any() or leave == "replace"


def test_what_no_slower_tier_has_is_remembered_as_volatile(make_chunk):
    arena = arena_of(2 * TOKENS)
    arena.put(make_chunk(0), volatile=True)
    arena.put(make_chunk(1))
    assert [arena.is_volatile(make_chunk(number).key) for number in range(2)] == [True, False]
    assert arena.sweep(arena.is_volatile) == (make_chunk(1).key,)


def test_wrong_books_are_told(make_chunk):
    arena = arena_of(4 * TOKENS)
    arena.put(make_chunk(0))
    arena.put(make_chunk(1))
    arena._slots.free(arena.locate(make_chunk(0).key).extents)
    with pytest.raises(StoreError, match="two chunks or to nobody"):
        arena.check_integrity()


def test_threads_that_put_while_one_reads_never_show_it_a_torn_chunk(make_chunk, same, model):
    arena = arena_of(6 * TOKENS)
    chunks = [make_chunk(number) for number in range(12)]
    stop, failures = threading.Event(), []

    def put() -> None:
        chance = random.Random(threading.get_ident())
        while not stop.is_set():
            arena.put(chance.choice(chunks))

    def guarded() -> None:
        try:
            put()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(3)]
    for thread in threads:
        thread.start()
    found, step, deadline = 0, 0, time.monotonic() + 60
    # How often the reader gets its turn beside three writers is the machine's affair.
    while (step < 1500 or found <= 100) and time.monotonic() < deadline:
        chunk = chunks[step % len(chunks)]
        step += 1
        if (mine := arena.find(chunk.key, model)) is not None:
            same(mine, chunk)
            found += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert found > 100
    arena.check_integrity()


def test_a_copy_that_fails_leaves_the_books_right(make_chunk, monkeypatch):
    arena = arena_of(2 * TOKENS)
    arena.put(make_chunk(0))
    with monkeypatch.context() as patch:
        patch.setattr(arena, "_copy_in", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            arena.put(make_chunk(1))
    arena.check_integrity()
    assert arena.used_tokens == TOKENS
    assert arena.put(make_chunk(2)).stored


def test_what_can_be_had_again_makes_room_before_what_would_be_lost(make_chunk):
    arena = arena_of(3 * TOKENS)
    arena.put(make_chunk(0), volatile=True)
    arena.put(make_chunk(1))
    arena.put(make_chunk(2))
    assert arena.put(make_chunk(3)).evicted == (make_chunk(1).key,)
    assert list(arena.evicted) == [make_chunk(1).key]


def test_a_chunk_that_is_put_as_held_is_still_there_when_it_is_located(make_chunk):
    arena = arena_of(TOKENS)
    with arena.hold():
        arena.put(make_chunk(0), held=True)
        assert not arena.put(make_chunk(1)).stored
        assert arena.locate(make_chunk(0).key) is not None
    assert arena.put(make_chunk(1)).stored
