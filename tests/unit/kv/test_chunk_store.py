from __future__ import annotations

import errno
import os
import resource
import shutil
import stat

import pytest

from inferscale_memory.errors import ChunkError, InvalidInputError, StoreError
from inferscale_memory.kv import ChunkStore, files


def paths(store) -> list:
    return sorted(store.root.rglob("*.safetensors"))


def leftovers(store) -> list:
    return sorted((store.root / ".work").iterdir())


def test_a_chunk_put_is_got_by_another_store_on_the_same_folder(store, make_chunk, same, model):
    chunk = make_chunk()
    assert store.put(chunk).stored
    same(ChunkStore(store.root).get(chunk.key, model), chunk)
    assert leftovers(store) == []


def test_the_file_stands_under_model_and_key(store, make_chunk, model):
    chunk = make_chunk()
    store.put(chunk)
    wanted = store.root / model[:16] / chunk.key[:2] / f"{chunk.key}.r0of1.safetensors"
    assert paths(store) == [wanted]


def test_every_file_and_folder_is_for_the_owner_only(store, make_chunk):
    store.put(make_chunk())
    store.delete([make_chunk(1).key])
    files.bump(store.root / "generation")
    for path in (store.root, *store.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_folders_made_above_the_store_are_the_owner_s_alone_too(tmp_path):
    ChunkStore(tmp_path / "new" / "memory" / "kv")
    for folder in (tmp_path / "new", tmp_path / "new" / "memory", tmp_path / "new" / "memory" / "kv"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_folder_above_the_store_that_is_there_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    ChunkStore(tmp_path / "memory" / "kv")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_missing_chunk_is_an_error_for_get_and_none_for_find(store, make_chunk, model):
    with pytest.raises(ChunkError, match="is not in"):
        store.get(make_chunk().key, model)
    assert store.find(make_chunk().key, model) is None


def test_a_chunk_of_another_model_is_a_miss(store, make_chunk, other_model):
    store.put(make_chunk())
    with pytest.raises(ChunkError, match="is not in"):
        store.get(make_chunk().key, other_model)


def test_a_file_moved_into_another_models_folder_is_a_miss(store, make_chunk, other_model):
    store.put(make_chunk())
    paths(store)[0].parent.parent.rename(store.root / other_model[:16])
    with pytest.raises(ChunkError, match="its fingerprint is"):
        store.get(make_chunk().key, other_model)
    with pytest.raises(ChunkError, match="holds a chunk of model"):
        store.check_integrity()


def test_a_file_renamed_to_another_key_is_a_miss(store, make_chunk, model):
    first, second = make_chunk(0), make_chunk(1)
    store.put(first)
    source = paths(store)[0]
    target = source.parent.parent / second.key[:2] / source.name.replace(first.key, second.key)
    target.parent.mkdir(exist_ok=True)
    source.rename(target)
    with pytest.raises(ChunkError, match="its key is"):
        store.get(second.key, model)


def test_a_file_of_another_rank_under_this_ranks_name_is_a_miss(tmp_path, make_chunk, model):
    stores = [ChunkStore(tmp_path, rank, 2) for rank in range(2)]
    stores[0].put(make_chunk(rank=0, world=2))
    source = paths(stores[0])[0]
    source.rename(source.with_name(source.name.replace("r0of2", "r1of2")))
    with pytest.raises(ChunkError, match="its rank is '0', wanted '1'"):
        stores[1].get(make_chunk().key, model)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-7], lambda raw: b"", lambda raw: raw[:99] + b"\1" + raw[100:]])
def test_a_damaged_file_is_a_miss_and_can_be_written_again(store, make_chunk, same, model, damage):
    chunk = make_chunk()
    store.put(chunk)
    path = paths(store)[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ChunkError, match="torn"):
        store.get(chunk.key, model)
    with pytest.raises(StoreError, match="torn"):
        store.check_integrity()
    store.put(chunk)
    same(store.get(chunk.key, model), chunk)
    store.check_integrity()


def test_a_folder_or_a_link_in_the_place_of_a_chunk_is_a_miss(store, make_chunk, model):
    store.put(make_chunk())
    path = paths(store)[0]
    elsewhere = path.rename(store.root / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.raises(ChunkError, match="cannot be read"):
        store.get(make_chunk().key, model)
    path.unlink()
    path.mkdir()
    with pytest.raises(ChunkError, match="cannot be read"):
        store.get(make_chunk().key, model)


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "0" * 63])
def test_a_key_that_is_none_never_reaches_the_disk(store, model, name):
    for call in (lambda: store.get(name, model), lambda: store.exists(name), lambda: store.delete([name])):
        with pytest.raises(InvalidInputError, match="key is"):
            call()


def test_a_chunk_exists_once_every_rank_has_put_its_part(tmp_path, make_chunk, model, other_model):
    stores = [ChunkStore(tmp_path, rank, 2) for rank in range(2)]
    key = make_chunk().key
    seen = [stores[0].exists(key)]
    for rank in (0, 1):
        stores[rank].put(make_chunk(rank=rank, world=2))
        seen.append(stores[0].exists(key))
    assert seen == [False, False, True]
    assert stores[0].exists(key, model)
    assert not stores[0].exists(key, other_model)
    assert stores[1].keys() == [key]
    assert not ChunkStore(tmp_path).exists(key)
    assert ChunkStore(tmp_path).keys() == []


def test_a_chunk_of_another_rank_is_refused(store, make_chunk):
    with pytest.raises(InvalidInputError, match="rank 1 of 2 put in a store of rank 0 of 1"):
        store.put(make_chunk(rank=1, world=2))


def test_usage_counts_chunks_files_and_bytes(tmp_path, make_chunk):
    for rank in range(2):
        ChunkStore(tmp_path, rank, 2).put(make_chunk(rank=rank, world=2))
    store = ChunkStore(tmp_path)
    store.put(make_chunk(7))
    usage = store.usage()
    assert (usage.chunks, usage.files) == (2, 3)
    assert usage.bytes == sum(path.stat().st_size for path in paths(store))


def test_an_old_temporary_file_is_swept_and_a_young_one_left_to_its_writer(store):
    old, young = store.root / ".work" / "old.tmp", store.root / ".work" / "young.tmp"
    for path in (old, young):
        path.write_bytes(b"half a chunk")
    os.utime(old, (1, 1))
    ChunkStore(store.root)
    assert leftovers(store) == [young]


def test_a_disk_that_fills_up_in_mid_write_leaves_the_old_chunk_and_no_temporary_file(store, make_chunk, same, model):
    chunk = make_chunk(shape=(2, 3, 2, 512))
    store.put(chunk)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (chunk.nbytes // 2, limits[1]))
    try:
        with pytest.raises(StoreError, match=f"cannot write chunk {chunk.key[:12]}.*Free space"):
            store.put(chunk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert leftovers(store) == []
    same(store.get(chunk.key, model), chunk)


def test_a_full_disk_is_named_in_the_error(store, make_chunk, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "open", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.put(make_chunk())


def test_a_read_only_store_serves_reads_and_refuses_writes_and_deletes(unprivileged_dir, make_chunk, same, model):
    ChunkStore(unprivileged_dir / "kv").put(make_chunk())
    folders = [unprivileged_dir / "kv", *(p for p in (unprivileged_dir / "kv").rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    store = ChunkStore(unprivileged_dir / "kv")
    same(store.get(make_chunk().key, model), make_chunk())
    with pytest.raises(StoreError, match="Permission denied"):
        store.put(make_chunk(1))
    with pytest.raises(StoreError, match=r"1 chunk files in .* were not removed"):
        store.delete([make_chunk().key])
    same(store.get(make_chunk().key, model), make_chunk())


def test_a_folder_that_cannot_be_created_is_refused_by_name(unprivileged_dir):
    unprivileged_dir.chmod(0o500)
    with pytest.raises(StoreError, match=r"cannot use .*as KV folder.*Permission denied"):
        ChunkStore(unprivileged_dir / "kv")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "kv").write_text("not a folder")
    with pytest.raises(StoreError, match="cannot use"):
        ChunkStore(tmp_path / "kv")


def test_an_exposed_store_key_is_refused_with_the_remedy(store):
    (store.root / "store.key").chmod(0o644)
    with pytest.raises(StoreError, match=r"mode 0644.*chmod 600"):
        ChunkStore(store.root)


def test_a_store_key_of_wrong_length_is_refused(store):
    (store.root / "store.key").write_bytes(b"short")
    with pytest.raises(StoreError, match="has 5 bytes, wanted 32"):
        ChunkStore(store.root)


def test_chunks_copied_from_another_store_are_misses(tmp_path, store, make_chunk, model):
    other = ChunkStore(tmp_path / "other")
    other.put(make_chunk())
    shutil.copytree(other.root / model[:16], store.root / model[:16])
    with pytest.raises(ChunkError, match="of another store"):
        store.get(make_chunk().key, model)


def test_a_rank_outside_the_world_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="rank 2 of 2"):
        ChunkStore(tmp_path, 2, 2)


def test_a_store_whose_folder_vanished_misses_and_refuses_writes(store, make_chunk, model):
    shutil.rmtree(store.root)
    assert store.find(make_chunk().key, model) is None
    assert not store.exists(make_chunk().key)
    assert (store.keys(), store.generation(), store.usage().files) == ([], 0, 0)
    with pytest.raises(StoreError, match="cannot write"):
        store.put(make_chunk())
