"""What every tier promises; one suite over all of them."""

from __future__ import annotations

import pytest

from inferscale_memory.kv import ChunkPool, ChunkStore
from inferscale_memory.kv.arena import Arena

torch = pytest.importorskip("torch")


@pytest.fixture(params=["arena", "pool", "store"])
def tier(request, tmp_path, make_chunk):
    if request.param == "arena":
        _, _, heads, dim = make_chunk().keys.shape
        return Arena(make_chunk().layer_names, heads, dim, torch.bfloat16, torch.device("cpu"), 1 << 20)
    return ChunkPool(1 << 20) if request.param == "pool" else ChunkStore(tmp_path / "kv")


def test_what_was_put_is_found_whole(tier, make_chunk, same, model):
    assert tier.put(make_chunk()).stored
    assert tier.exists(make_chunk().key)
    same(tier.find(make_chunk().key, model), make_chunk())
    tier.check_integrity()


def test_a_miss_of_any_kind_is_none(tier, make_chunk, model, other_model):
    tier.put(make_chunk())
    assert tier.find(make_chunk(1).key, model) is None
    assert tier.find(make_chunk().key, other_model) is None


def test_a_second_put_replaces_the_first(tier, make_chunk, same, model):
    chunk = make_chunk()
    for _ in range(2):
        assert tier.put(chunk) == (True, ())
    same(tier.find(chunk.key, model), chunk)
    tier.check_integrity()


def test_what_was_deleted_is_a_miss_and_counted_once(tier, make_chunk, model):
    tier.put(make_chunk(0))
    tier.put(make_chunk(1))
    assert tier.delete([make_chunk(0).key, make_chunk(2).key]) == 1
    assert not tier.exists(make_chunk(0).key)
    assert tier.find(make_chunk(0).key, model) is None
    assert tier.exists(make_chunk(1).key)
    tier.check_integrity()


def test_deleting_nothing_is_fine(tier):
    assert tier.delete([]) == 0
