"""Threads and processes on one file, and processes that die."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferscale_memory.facts import FactStore, NewFact

ROOT = Path(__file__).parents[3]
OPEN = """
import sys, time
from inferscale_memory.db import open_database
from inferscale_memory.facts import FactStore, NewFact
from inferscale_memory.scope import Scope
engine = open_database(f"sqlite:///{sys.argv[1]}")
store, alice = FactStore(engine), Scope.of(user_id="alice")
"""
SAVE_SHARED_AND_OWN = """
for i in range(25):
    result = store.add([NewFact(f"shared {i}"), NewFact(f"process {sys.argv[2]} fact {i}")], alice)
    print(*result.created, flush=True)
"""
SAVE_UNTIL_KILLED = """
i = 0
while True:
    print(store.add([NewFact(f"fact {i} " + "x" * 3000)], alice).facts[0].id, flush=True)
    i += 1
"""
STOP_INSIDE = """
with store.transaction() as tx:
    store.add([NewFact("never committed")], alice, tx=tx)
    print("inside", flush=True)
    time.sleep(600)
"""


def start(script: str, path: Path, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OPEN + script, str(path), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def follow(store: FactStore, seen: list[int], stop: threading.Event) -> None:
    """Read the change log as an index would: always from the last number seen."""
    while True:
        last_round = stop.is_set()
        while changes := store.changes_since(seen[-1] if seen else 0, limit=7):
            seen.extend(change.seq for change in changes)
        if last_round:
            return


def test_sixteen_threads_lose_and_double_nothing_and_a_follower_skips_nothing(store, alice):
    seen: list[int] = []
    stop = threading.Event()
    follower = threading.Thread(target=follow, args=(store, seen, stop))
    follower.start()

    def work(name: int) -> list[str]:
        created: list[str] = []
        for i in range(8):
            created += store.add([NewFact(f"shared {i}"), NewFact(f"thread {name} fact {i}")], alice).created
        return created

    with ThreadPoolExecutor(16) as pool:
        created = [fact_id for ids in pool.map(work, range(16)) for fact_id in ids]
    stop.set()
    follower.join()
    texts = [fact.text for fact in store.list(alice, limit=1000).facts]
    wanted = {f"shared {i}" for i in range(8)} | {f"thread {n} fact {i}" for n in range(16) for i in range(8)}
    assert sorted(texts) == sorted(wanted)
    assert len(created) == len(set(created)) == len(wanted)
    assert seen == [change.seq for change in store.changes_since(0, limit=1000)]
    assert len(seen) == len(wanted)


@pytest.mark.full  # unit/memory has the same through Memory
def test_four_processes_lose_and_double_nothing(store, path, alice):
    workers = [start(SAVE_SHARED_AND_OWN, path, str(n)) for n in range(4)]
    created = [fact_id for worker in workers for fact_id in worker.communicate(timeout=120)[0].split()]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    texts = [fact.text for fact in store.list(alice, limit=1000).facts]
    wanted = {f"shared {i}" for i in range(25)} | {f"process {n} fact {i}" for n in range(4) for i in range(25)}
    assert sorted(texts) == sorted(wanted)
    assert len(created) == len(set(created)) == len(wanted)
    changes = store.changes_since(0, limit=1000)
    assert {change.fact_id for change in changes} == set(created)
    assert [change.seq for change in changes] == sorted({change.seq for change in changes})


def test_threads_that_delete_at_once_each_succeed_or_are_told(store, alice):
    facts = store.add([NewFact(f"fact {i}") for i in range(8)], alice).facts

    def work(i: int) -> bool:
        try:
            store.delete(facts[i % 8].id, alice)
        except KeyError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(16))) == 8
    assert store.count(alice) == 0
    assert store.scrub()


def test_a_killed_process_loses_no_fact_that_it_reported(store, engine, path, alice):
    worker = start(SAVE_UNTIL_KILLED, path)
    assert worker.stdout is not None
    reported = [worker.stdout.readline().strip() for _ in range(30)]
    worker.send_signal(signal.SIGKILL)
    reported += worker.communicate()[0].split()
    found = store.get_many(reported)
    assert [found[fact_id].text.split(" x")[0] for fact_id in reported] == [f"fact {i}" for i in range(len(reported))]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_a_process_killed_inside_a_transaction_leaves_nothing_of_it_and_no_lock(store, path, alice):
    store.add([NewFact("before")], alice)
    worker = start(STOP_INSIDE, path)
    assert worker.stdout is not None
    assert worker.stdout.readline().strip() == "inside"
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    store.add([NewFact("after")], alice)
    assert [fact.text for fact in store.list(alice).facts] == ["before", "after"]
    assert len(store.changes_since(0)) == 2
