"""What a delete leaves behind: nothing, and a number that tells everyone."""

from __future__ import annotations

import pytest

from inferscale_memory.kv import ChunkStore, files


def leftovers(store) -> list:
    return sorted((store.root / ".work").iterdir())


def test_delete_removes_every_rank_and_counts_chunks(tmp_path, make_chunk, model):
    stores = [ChunkStore(tmp_path, rank, 2) for rank in range(2)]
    for store in stores:
        store.put(make_chunk(0, rank=store.rank, world=2))
        store.put(make_chunk(1, rank=store.rank, world=2))
    assert stores[0].delete([make_chunk(0).key, make_chunk(9).key, make_chunk(0).key]) == 1
    assert stores[1].keys() == [make_chunk(1).key]
    assert stores[1].find(make_chunk(0).key, model) is None
    assert leftovers(stores[0]) == []


def test_deleted_content_is_overwritten_before_it_is_unlinked(store, make_chunk):
    store.put(make_chunk())
    (path,) = store.root.rglob("*.safetensors")
    size = path.stat().st_size
    with path.open("rb") as witness:
        store.delete([make_chunk().key])
        assert not path.exists()
        assert witness.read() == bytes(size)


def test_a_delete_is_seen_by_every_other_process_through_one_number(store, make_chunk):
    other = ChunkStore(store.root)
    store.put(make_chunk())
    before = other.generation()
    store.put(make_chunk(1))
    assert other.generation() == before
    store.delete([make_chunk().key])
    assert other.generation() > before


def test_deletes_within_one_clock_tick_all_change_the_generation(store, make_chunk):
    seen = [store.generation()]
    for number in range(50):
        store.put(make_chunk(number))
        store.delete([make_chunk(number).key])
        seen.append(store.generation())
    assert len(set(seen)) == 51
    assert seen == sorted(seen)


def test_chunks_are_hidden_before_the_generation_changes(store, make_chunk, monkeypatch):
    store.put(make_chunk())
    seen = []
    bump = files.bump
    monkeypatch.setattr(files, "bump", lambda path: (seen.append(store.exists(make_chunk().key)), bump(path)))
    store.delete([make_chunk().key])
    assert seen == [False]


@pytest.mark.parametrize("step", ["bump", "wipe"])
def test_a_delete_cut_short_is_finished_by_the_next_store_to_open(store, make_chunk, model, monkeypatch, step):
    class Killed(BaseException):
        pass

    def die(_):
        raise Killed

    store.put(make_chunk())
    before = store.generation()
    with monkeypatch.context() as patch:
        patch.setattr(files, step, die)
        with pytest.raises(Killed):
            store.delete([make_chunk().key])
    assert store.find(make_chunk().key, model) is None
    assert len(leftovers(store)) == 1
    ChunkStore(store.root)
    assert leftovers(store) == []
    assert store.generation() > before


def test_a_deletion_without_files_is_announced_like_one_with_files(store):
    before = store.generation()
    store.announce()
    assert store.generation() > before
