"""Searches with a time limit: threads, one search per message, one warning per outage."""

from __future__ import annotations

import logging
import threading

import pytest

from inferscale_memory.daemons import BusyError, DaemonPool, await_for, wait_for
from inferscale_memory.handle import Handle
from inferscale_memory.timeboxed import Outage, Recalls

ALICE = {"user_id": "alice"}


@pytest.fixture
def gate():
    """Work waits for it; it opens when the test ends."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_work_is_done_in_a_thread_and_waited_for_in_both_worlds():
    pool = DaemonPool(1)
    one, other = pool.submit(threading.get_ident), pool.submit(lambda: 1 / 0)
    wait_for(one, 10)
    await await_for(other, 10)
    assert one.result() != threading.get_ident()
    assert isinstance(other.exception(), ZeroDivisionError)


async def test_waiting_ends_before_the_work_does(gate):
    hanging = DaemonPool(1).submit(gate.wait)
    wait_for(hanging, 0.01)
    await await_for(hanging, 0.01)
    assert not hanging.done()


def test_a_pool_whose_threads_hang_and_whose_queue_is_full_refuses_work(gate):
    pool = DaemonPool(1, waiting=1)
    begun = threading.Event()
    pool.submit(lambda: begun.set() or gate.wait())
    begun.wait(10)
    pool.submit(gate.wait)
    with pytest.raises(BusyError, match="1 calls do not return"):
        pool.submit(gate.wait)


def test_a_message_is_searched_for_once_and_its_text_anew_when_it_changed():
    recalls, searched = Recalls(timeout=10, ttl=100), []

    def search():
        searched.append(1)
        return Handle("token")

    first, begun = recalls.of(ALICE, "m1", "tea", search)
    wait_for(first.found, 10)
    assert begun
    assert recalls.of(ALICE, "m1", "tea", search) == (first, False)
    assert recalls.known(ALICE, "m1") is first
    assert recalls.of(ALICE, "m1", "coffee", search)[1]
    assert recalls.of({"user_id": "bob"}, "m1", "tea", search)[1]
    recalls.drop(ALICE, "m1")
    assert recalls.known(ALICE, "m1") is None


def test_an_outage_is_told_once_and_so_is_its_end(caplog):
    outage = Outage("Somebody")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            outage.failed("error", "down")
        for _ in range(2):
            outage.worked()
    assert [record.getMessage() for record in caplog.records] == [
        "Somebody: memory does not answer, and the application goes on without: down",
        "Somebody: memory answers again.",
    ]
