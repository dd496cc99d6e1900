"""Threads and processes on one home."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.memory.standin import StandIn

SECOND = """
import sys
from tests.unit.memory.toys import open_memory
memory = open_memory()
print([fact.text for fact in memory.list(user_id="alice").facts], flush=True)
handle = sys.stdin.readline().strip()
print([fact.fact.text for fact in memory.explain(handle).facts], flush=True)
memory.add("Rex is a spaniel.", user_id="alice")
(rex,) = [hit.fact for hit in memory.search("dog called Rex", 1, user_id="alice")]
memory.delete(rex.id, user_id="alice")
print("done", flush=True)
sys.stdin.readline()
"""
SAVE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tests.unit.memory.toys import open_memory
name = sys.argv[1]
with open_memory() as memory, ThreadPoolExecutor(4) as pool:
    def save(thread):
        created = []
        for i in range(int(sys.argv[2])):
            created += memory.add([f"process {name} thread {thread} fact {i}", f"shared {i}"], user_id="alice").created
            assert memory.recall(f"shared {i}", 3, user_id="alice").facts
        return created
    print(*(fact_id for created in pool.map(save, range(4)) for fact_id in created))
"""


def test_what_a_second_process_adds_and_deletes_is_seen_by_the_first(memory, started):
    memory.add(["My dog is called Rex.", "I live in Graz."], user_id="alice")
    handle = memory.recall("dog", user_id="alice")
    second = started(SECOND)
    assert second.stdout.readline() == "['My dog is called Rex.', 'I live in Graz.']\n"
    second.stdin.write(f"{handle}\n")
    second.stdin.flush()
    assert second.stdout.readline() == "['I live in Graz.', 'My dog is called Rex.']\n"
    assert second.stdout.readline() == "done\n"
    assert [hit.fact.text for hit in memory.search("dog called Rex", 3, user_id="alice")] == [
        "Rex is a spaniel.",
        "I live in Graz.",
    ]
    explained = memory.explain(handle)
    assert ([fact.fact.text for fact in explained.facts], explained.deleted) == (["I live in Graz."], 1)


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.full)])
def test_sixteen_threads_and_four_processes_saving_lose_and_double_nothing(memory, opened, home, started, rounds):
    processes = [started(SAVE, str(n), str(rounds)) for n in range(4)]

    def save(thread):
        created = []
        for i in range(rounds):
            created += memory.add([f"thread {thread} fact {i}", f"shared {i}"], user_id="alice").created
        return created

    with ThreadPoolExecutor(16) as pool:
        created = [fact_id for ids in pool.map(save, range(16)) for fact_id in ids]
    for process in processes:
        created += process.communicate(timeout=300)[0].split()
    assert [process.returncode for process in processes] == [0] * 4
    wanted = {f"shared {i}" for i in range(rounds)}
    wanted |= {f"thread {t} fact {i}" for t in range(16) for i in range(rounds)}
    wanted |= {f"process {p} thread {t} fact {i}" for p in range(4) for t in range(4) for i in range(rounds)}
    assert len(created) == len(set(created)) == len(wanted)
    memory.close()
    again = opened(StandIn(home), policy="preamble")
    assert sorted(fact.text for fact in again.list(limit=1000, user_id="alice").facts) == sorted(wanted)
    assert len(again.search("fact", 1000, user_id="alice")) > 0
    again.retriever.check_integrity()
    assert len(again.retriever.index) == len(wanted)
    assert not again.flush(120).parked
    # Encoding began when the memory was opened: what was done by then is not in flush's own count.
    assert again.status().encoded == len(wanted)
    assert len(again.chunks.keys()) == len(wanted)
