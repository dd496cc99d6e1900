"""A full disk, a read-only store, a killed process: what is refused, what goes on, and that nothing saved is lost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import update

from inferscale_memory import StoreError
from inferscale_memory.encoding.tables import TombstoneRow
from tests.unit.encoding.plumbing import MODEL
from tests.unit.memory.standin import StandIn


@contextmanager
def full_disk() -> Iterator[None]:
    """No regular file can be written, as on a disk without a free block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def texts(memory):
    return [fact.text for fact in memory.list(user_id="alice").facts]


def chunk_files(home):
    return [path for path in (home / "memory" / "kv").rglob("*.safetensors*") if path.is_file()]


def test_on_a_full_disk_saving_fails_by_name_searching_goes_on_and_nothing_is_lost(memory):
    (fact, _) = memory.add(["My dog is called Rex.", "I live in Graz."], user_id="alice").facts
    memory.search("dog", user_id="alice")
    with full_disk():
        for change in (
            lambda: memory.add("One more.", user_id="alice"),
            lambda: memory.update(fact.id, text="My dog is called Max.", user_id="alice"),
            lambda: memory.delete(fact.id, user_id="alice"),
            lambda: memory.delete_all(user_id="alice"),
            lambda: memory.recall("dog", user_id="alice"),
        ):
            with pytest.raises(StoreError, match=r"facts\.db|KV handles"):
                change()
        assert memory.search("dog", 1, user_id="alice")[0].fact == fact
    assert texts(memory) == ["My dog is called Rex.", "I live in Graz."]
    assert memory.add("One more.", user_id="alice").created
    assert len(memory.explain(memory.recall("dog", user_id="alice")).facts) == 3


def test_a_handle_given_out_before_is_given_again_on_a_full_disk(memory):
    memory.add("My dog is called Rex.", user_id="alice")
    handle = memory.recall("dog", user_id="alice")
    with full_disk():
        assert memory.recall("dog", user_id="alice") == handle
        assert memory.explain(handle).facts[0].fact.text == "My dog is called Rex."


def test_facts_that_came_before_the_disk_was_full_are_found_though_their_vectors_cannot_be_kept(memory, opened, caplog):
    memory.add("My dog is called Rex.", user_id="alice")
    with full_disk():
        assert len(memory.search("dog", user_id="alice")) == 1
    assert "could not be kept" in caplog.text
    assert len(opened().search("dog", user_id="alice")) == 1


def test_encoding_waits_for_a_disk_with_room(opened, home):
    engine = StandIn(home)
    memory = opened(engine, policy="preamble")
    memory.encoder.pause()
    facts = memory.add(["one", "two"], user_id="alice").facts
    with full_disk():
        memory.encoder.resume()
        with pytest.raises((StoreError, TimeoutError)):
            memory.flush(0.5)
    assert memory.flush(20).parked == ()
    assert set(memory.ledger.lookup([f.id for f in facts], MODEL, memory.policy.name)) == {f.id for f in facts}


def test_a_read_only_database_answers_and_refuses_to_save(memory, opened, home):
    (fact,) = memory.add("My dog is called Rex.", user_id="alice").facts
    handle = memory.recall("dog", user_id="alice")
    read_only = opened(database_url=f"sqlite:///file:{home}/memory/facts.db?mode=ro&uri=true")
    for change in (
        lambda: read_only.add("new", user_id="alice"),
        lambda: read_only.update(fact.id, text="new", user_id="alice"),
        lambda: read_only.delete(fact.id, user_id="alice"),
        lambda: read_only.recall("a new list", 1, 1, user_id="alice"),
    ):
        with pytest.raises(StoreError, match="readonly"):
            change()
    assert read_only.search("dog", user_id="alice")[0].fact == fact
    assert read_only.recall("dog", user_id="alice") == handle
    assert read_only.explain(handle).facts[0].fact == fact
    assert texts(read_only) == texts(memory) == ["My dog is called Rex."]


def test_a_read_only_home_is_refused_at_opening_and_opens_again_unharmed(opened, unprivileged_home):
    with opened() as memory:
        memory.add("kept", user_id="alice")
    folder = unprivileged_home / "memory"
    folder.chmod(0o500)
    with pytest.raises(StoreError, match=r"facts\.db.*Remedy"):
        opened()
    folder.chmod(0o700)
    assert texts(opened()) == ["kept"]


def test_a_home_that_cannot_be_made_is_named(opened, unprivileged_home):
    unprivileged_home.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be made: Permission denied"):
        opened(home=unprivileged_home / "new")
    unprivileged_home.chmod(0o700)


def test_chunk_files_that_cannot_be_removed_are_told_and_removed_at_the_next_opening(opened, unprivileged_home):
    memory = opened(StandIn(unprivileged_home), policy="preamble")
    (fact, _) = memory.add(["forget me", "keep me"], user_id="alice").facts
    memory.flush(20)
    before = chunk_files(unprivileged_home)
    folders = {path.parent for path in before}
    for folder in folders:
        folder.chmod(0o500)
    with pytest.raises(
        StoreError, match=r"deleted, and no question is answered from it.*traces of it are still on disk"
    ):
        memory.delete(fact.id, user_id="alice")
    assert texts(memory) == ["keep me"]
    assert [hit.fact.text for hit in memory.search("forget me", 5, user_id="alice")] == ["keep me"]
    memory.close()
    for folder in folders:
        folder.chmod(0o700)
    again = opened()
    assert again.ledger.tombstones() == []
    assert len(chunk_files(unprivileged_home)) == len(before) - 1


ADD_AND_DIE = """
import os, signal
from tests.unit.memory.toys import open_memory
memory = open_memory()
memory.add(["one", "two", {"role": "user", "content": "three"}], user_id="alice")
os.kill(os.getpid(), signal.SIGKILL)
"""
DELETE_AND_DIE = """
import os, signal, sys
from inferscale_memory import sync_memory
from tests.unit.memory.toys import open_memory
memory = open_memory()
fact = memory.list(user_id="alice").facts[0]
def die(*_):
    if sys.argv[1] == "claimed":
        memory.ledger.claim_tombstones()
    os.kill(os.getpid(), signal.SIGKILL)
memory.store.scrub = lambda: True
sync_memory.purge = die
memory.delete(fact.id, user_id="alice")
"""


def test_facts_saved_by_a_process_that_is_killed_at_once_are_encoded_by_the_next(opened, home, started):
    opened().close()
    assert started(ADD_AND_DIE).wait(60) == -9
    memory = opened(StandIn(home))
    assert texts(memory) == ["one", "two", "User: three"]
    assert memory.flush(20).parked == ()
    handle = memory.recall("one two three", user_id="alice")
    assert [fact.resident for fact in memory.explain(handle).facts] == [True] * 3


@pytest.mark.parametrize("when", ["committed", pytest.param("claimed", marks=pytest.mark.full)])
def test_what_a_process_killed_in_a_deletion_left_is_erased_at_the_next_opening(opened, home, started, when):
    with opened(StandIn(home), policy="preamble") as memory:
        memory.add(["forget me", "keep me"], user_id="alice")
        memory.flush(20)
        handle = memory.recall("forget me", user_id="alice")
    assert started(DELETE_AND_DIE, when).wait(60) == -9
    assert len(chunk_files(home)) == 2
    memory = opened()
    assert len(chunk_files(home)) == 1
    assert memory.ledger.tombstones() == []
    assert [fact.fact.text for fact in memory.explain(handle).facts] == ["keep me"]
    assert [path for path in (home / "memory").rglob("facts.db*") if b"forget me" in path.read_bytes()] == []


def test_what_a_live_process_is_erasing_is_left_to_it(opened, home):
    with opened(StandIn(home), policy="preamble") as memory:
        (fact,) = memory.add("forget me", user_id="alice").facts
        memory.flush(20)
        with memory.store.transaction() as tx:
            memory.store.delete(fact.id, fact.scope, tx=tx)
            memory.ledger.forget([fact.id], tx=tx)
        memory.ledger.claim_tombstones()
        assert len(opened().ledger.tombstones()) == 1
        with memory.store.transaction() as tx:  # as if its process were gone
            tx.execute(update(TombstoneRow).values(claimed_by=memory.ledger.owner.rsplit(":", 2)[0] + ":4194305:x"))
        assert opened().ledger.tombstones() == []
    assert chunk_files(home) == []
