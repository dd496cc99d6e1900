from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferscale_memory.errors import ChunkError
from inferscale_memory.kv import ChunkStore

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def start_worker(root: Path, rounds: int, last: int) -> subprocess.Popen:
    path = os.pathsep.join(map(str, (HERE, ROOT, ROOT / "kernels")))
    return subprocess.Popen(
        [sys.executable, str(HERE / "race_worker.py"), str(root), str(rounds), str(last)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def rounds(request):
    return request.param


@pytest.fixture
def worker(tmp_path, rounds):
    process = start_worker(tmp_path / "kv", rounds, last=1)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.full)], indirect=True)
def test_two_processes_putting_and_deleting_one_chunk_never_show_half_of_it(
    tmp_path, rounds, worker, make_chunk, same, model
):
    chunk = make_chunk(shape=(4, 16, 2, 64))
    assert worker.stdout.readline() == "ready\n"
    store = ChunkStore(tmp_path / "kv")
    generations, whole, missed = [store.generation()], 0, 0
    while worker.poll() is None:
        store.put(chunk)
        try:
            same(store.get(chunk.key, model), chunk)
            whole += 1
        except ChunkError:
            missed += 1
        store.delete([chunk.key])
        generations.append(store.generation())
    assert worker.wait() == 0
    assert whole > 0
    assert generations == sorted(generations)
    assert store.generation() >= rounds
    store.delete([chunk.key])
    assert store.keys() == [make_chunk(1).key]
    assert list((store.root / ".work").iterdir()) == []


@pytest.mark.full  # the threads below take the same lock
def test_two_processes_opening_a_new_store_agree_on_its_key(tmp_path, make_chunk, same, model):
    workers = [start_worker(tmp_path / "kv", rounds=0, last=number) for number in range(2)]
    assert [process.communicate()[0] for process in workers] == ["ready\ndone\n"] * 2
    store = ChunkStore(tmp_path / "kv")
    for number in range(2):
        same(store.get(make_chunk(number).key, model), make_chunk(number))


def test_many_threads_opening_a_new_store_read_each_others_chunks(tmp_path, make_chunk, same, model):
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(lambda _: ChunkStore(tmp_path / "kv"), range(8)))
    for number, store in enumerate(stores):
        store.put(make_chunk(number))
    for number in range(8):
        same(stores[-1 - number].get(make_chunk(number).key, model), make_chunk(number))
