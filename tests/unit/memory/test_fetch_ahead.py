"""Chunks of recalled facts are asked for before the question comes."""

from __future__ import annotations

import threading

from inferscale_memory.ahead import FetchAhead, Wanted
from inferscale_memory.errors import StoreError


def wanted(fact_id, revision, policy="x"):
    return Wanted(fact_id, revision, policy)


class Engine:
    """Writes down what it is asked for, in which thread."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.threads: set[int] = set()
        self.done = threading.Semaphore(0)

    def keys_of(self, facts):
        self.threads.add(threading.get_ident())
        return {
            fact.fact_id: f"chunk {fact.policy} of {fact.fact_id}" for fact in facts if fact.fact_id != "not encoded"
        }

    def fetch(self, keys):
        self.asked.append(list(keys))
        self.done.release()

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.done.acquire(timeout=20)


def test_what_is_encoded_of_a_recall_is_asked_for_off_the_callers_thread():
    engine = Engine()
    FetchAhead(engine.keys_of, engine.fetch).recalled([wanted("a", 1), wanted("not encoded", 1), wanted("b", 2)])
    engine.wait(1)
    assert engine.asked == [["chunk x of a", "chunk x of b"]]
    assert threading.get_ident() not in engine.threads


def test_within_a_minute_a_fact_is_asked_for_once_for_each_of_its_revisions():
    engine, now = Engine(), [0.0]
    ahead = FetchAhead(engine.keys_of, engine.fetch, clock=lambda: now[0])
    ahead.recalled([wanted("a", 1)])
    engine.wait(1)
    ahead.recalled([wanted("a", 1)])
    ahead.recalled([wanted("a", 2), wanted("b", 1)])
    engine.wait(1)
    assert engine.asked == [["chunk x of a"], ["chunk x of a", "chunk x of b"]]
    now[0] = 61.0
    ahead.recalled([wanted("b", 1)])
    engine.wait(1)
    assert engine.asked[2:] == [["chunk x of b"]], "it may have left the arena since"


def test_a_fact_that_was_not_encoded_yet_is_asked_for_when_it_is():
    engine = Engine()
    ahead = FetchAhead(engine.keys_of, engine.fetch, clock=lambda: 0.0)
    encoded = {}
    ahead._keys_of = lambda ids: engine.done.release() or dict(encoded)
    ahead.recalled([wanted("a", 1)])
    engine.wait(1)
    encoded["a"] = "chunk x of a"
    ahead.recalled([wanted("a", 1)])
    engine.wait(2)
    assert engine.asked == [["chunk x of a"]]


def test_a_memory_that_is_closed_looks_nothing_up():
    engine = Engine()
    ahead = FetchAhead(engine.keys_of, engine.fetch)
    ahead.close()
    ahead.recalled([wanted("a", 1)])
    ahead._pool.submit(engine.done.release)
    engine.wait(1)
    assert engine.asked == []


def test_a_memory_that_is_closed_meanwhile_is_no_error():
    engine = Engine()
    failed = threading.Event()

    def closed(fact_ids):
        failed.set()
        raise StoreError("this memory is closed")

    FetchAhead(closed, engine.fetch).recalled([wanted("a", 1)])
    assert failed.wait(20)
    assert engine.asked == []


def test_recalls_are_never_kept_waiting_by_a_database_that_hangs():
    engine, hang = Engine(), threading.Event()
    ahead = FetchAhead(lambda fact_ids: hang.wait(20) and {}, engine.fetch)
    for number in range(100):
        ahead.recalled([(f"fact {number}", 1)])
    hang.set()


def test_another_place_in_the_prompt_asks_for_another_chunk_of_the_fact():
    engine = Engine()
    ahead = FetchAhead(engine.keys_of, engine.fetch, clock=lambda: 0.0)
    for policy in ("nearest:3", "nearest:8"):
        ahead.recalled([wanted("a", 1, policy)])
        engine.wait(1)
    assert engine.asked == [["chunk nearest:3 of a"], ["chunk nearest:8 of a"]]
