from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from plumbing import ALICE, BOB, MODEL

from inferscale_memory import metrics
from inferscale_memory.encoding.purge import purge
from inferscale_memory.errors import EncodingError, EngineError, FlushTimeoutError, InvalidInputError, StoreError

WAIT = 30.0


def files(world) -> set[str]:
    return set(world.chunks.keys())


def gate(world, text):
    """Hold the encode of ``text`` after its file is written: (it is there, let it go)."""
    written, released = threading.Event(), threading.Event()

    def hold(encoded):
        if encoded == text:
            written.set()
            assert released.wait(WAIT)

    world.engine.after = hold
    return written, released


def test_flush_returns_when_every_fact_has_a_chunk_on_disk(world):
    facts = world.save(*(f"fact {i}" for i in range(20)))
    world.encoder.start()
    report = world.encoder.flush(WAIT)
    assert (report.encoded, report.parked) == (20, ())
    ready = world.ready(facts)
    assert len(ready) == 20
    assert files(world) == set(ready.values())
    for key in ready.values():
        world.chunks.get(key, MODEL)


def test_facts_saved_while_it_runs_are_encoded(world):
    world.encoder.start()
    world.encoder.flush(WAIT)
    [fact] = world.save("late")
    world.encoder.flush(WAIT)
    assert world.ready([fact])


def test_a_new_fact_re_encodes_nothing(world):
    world.save("one", "two")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.save("three")
    world.encoder.flush(WAIT)
    assert sorted(world.engine.texts) == ["one", "three", "two"]


def test_many_requests_are_in_flight_at_once_but_no_more_than_asked(opened):
    world = opened(seconds=0.01)
    world.save(*(f"fact {i}" for i in range(20)))
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert world.engine.most_at_once == 4


def test_every_encode_is_salted_for_the_owner_of_its_fact(world):
    world.save("of alice")
    world.save("of bob", scope=BOB)
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert dict(zip(world.engine.texts, world.engine.salts, strict=True)) == {
        "of alice": f"salt of {ALICE}",
        "of bob": f"salt of {BOB}",
    }


def test_equal_facts_of_two_users_have_chunks_of_their_own(world):
    facts = world.save("I like tea") + world.save("I like tea", scope=BOB)
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert len(set(world.ready(facts).values())) == 2


def test_deleting_a_fact_deletes_its_file_and_re_encodes_those_who_saw_it(world):
    seen, seer, stranger = world.save("seen", "seer") + world.save("stranger", scope=BOB)
    world.encoder.start()
    world.encoder.flush(WAIT)
    before = world.ready([seen, seer, stranger])
    world.encoder.pause()
    forgotten = world.delete(seen)
    purge(world.ledger, world.chunks)
    assert world.ready([seer]) == {}
    assert files(world) == {before[stranger.id]}
    assert set(forgotten.keys) == {before[seen.id], before[seer.id]}
    world.encoder.resume()
    world.encoder.flush(WAIT)
    after = world.ready([seer, stranger])
    assert after[stranger.id] == before[stranger.id]
    assert after[seer.id] != before[seer.id]
    assert files(world) == set(after.values())


def test_a_fact_deleted_while_it_is_encoded_leaves_no_file(world):
    [fact] = world.save("secret")
    written, released = gate(world, "secret")
    world.encoder.start()
    assert written.wait(WAIT)
    world.delete(fact)
    released.set()
    world.encoder.stop(WAIT)
    assert world.engine.texts == ["secret"]
    assert files(world) == set()
    assert world.ledger.tombstones() == []


def test_a_fact_whose_context_is_deleted_while_it_is_encoded_is_encoded_again_without_it(world):
    seen, seer = world.save("seen", "seer")
    written, released = gate(world, "seer")
    world.encoder.start()
    assert written.wait(WAIT)
    [traced] = files(world) - set(world.ready([seen]).values())
    world.delete(seen)
    released.set()
    world.encoder.flush(WAIT)
    [key] = world.ready([seer]).values()
    assert key != traced
    world.encoder.stop(WAIT)
    assert files(world) == {key}


def test_chunks_whose_files_are_gone_are_encoded_again_at_the_next_start(opened):
    world = opened()
    facts = world.save("kept", "lost")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.encoder.stop()
    world.chunks.delete([world.ready(facts)[facts[1].id]])
    again = opened()
    again.encoder.start()
    again.encoder.flush(WAIT)
    assert again.engine.texts == ["lost"]
    assert files(again) == set(again.ready(facts).values())


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(opened):
    world = opened()
    [fact] = world.save("secret")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.encoder.stop()
    world.delete(fact)
    assert len(files(world)) == 1
    again = opened("prefix")
    again.encoder.start()
    assert files(again) == set()
    assert again.ledger.tombstones() == []


def test_a_purge_that_cannot_delete_keeps_its_tombstones(world, monkeypatch):
    [fact] = world.save("secret")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.encoder.stop()
    world.delete(fact)

    def read_only(keys):
        raise StoreError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(world.chunks, "delete", read_only)
        with pytest.raises(StoreError, match="read-only"):
            purge(world.ledger, world.chunks)
    assert len(world.ledger.tombstones()) == 1
    assert purge(world.ledger, world.chunks) == 1
    assert world.ledger.tombstones() == []


def test_a_failing_fact_is_tried_three_times_then_parked_and_does_not_stop_the_others(world):
    world.engine.before = lambda text: "rows are missing" if text == "bad" else None
    bad, *good = world.save("bad", "one", "two", "three")
    world.encoder.start()
    report = world.encoder.flush(WAIT)
    assert world.engine.texts.count("bad") == 3
    assert set(world.ready([bad, *good])) == {fact.id for fact in good}
    [parked] = report.parked
    assert (parked.fact_id, parked.attempts, parked.reason) == (bad.id, 3, "rows are missing")
    assert report.encoded == 3
    assert files(world) == set(world.ready(good).values())


def test_a_fact_that_fails_once_is_encoded_at_the_second_attempt(world):
    def fail_once(text):
        if world.engine.texts.count(text) == 1:
            raise OSError("no space left on device")

    retries = metrics.ENCODE_RETRIES._value.get()
    world.engine.before = fail_once
    [fact] = world.save("fact")
    world.encoder.start()
    assert world.encoder.flush(WAIT).parked == ()
    assert world.ready([fact])
    assert metrics.ENCODE_RETRIES._value.get() == retries + 1


def test_parked_facts_are_encoded_when_they_are_retried(world):
    world.engine.before = lambda text: "disk full"
    [fact] = world.save("fact")
    world.encoder.start()
    assert len(world.encoder.flush(WAIT).parked) == 1
    world.engine.before = lambda text: None
    assert world.encoder.retry_parked(ALICE) == 1
    assert world.encoder.flush(WAIT).encoded == 1
    assert world.ready([fact])
    assert world.encoder.parked() == []


def test_a_fact_longer_than_the_model_is_parked_at_once_with_the_numbers(opened):
    world = opened(max_model_len=64)
    long, short = world.save("x" * 100, "short")
    world.encoder.start()
    [parked] = world.encoder.flush(WAIT).parked
    assert (parked.fact_id, parked.attempts) == (long.id, 1)
    assert "103 tokens" in parked.reason
    assert world.engine.texts == ["short"]
    assert world.ready([short])


def test_an_engine_that_dies_stops_the_encoder_and_a_new_start_resumes(world):
    def die(text):
        raise EngineError("the engine died.")

    world.engine.before = die
    facts = world.save("one", "two", "three")
    world.encoder.start()
    with pytest.raises(EngineError, match=r"stopped with 3 facts left: the engine died\. They are safe"):
        world.encoder.flush(WAIT)
    assert not world.encoder.running
    assert world.encoder.status().reason == "the engine died."
    assert world.encoder.parked() == []
    world.engine.before = lambda text: None
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert len(world.ready(facts)) == 3
    assert world.encoder.status().reason is None


def test_a_prompt_that_the_engine_refuses_is_parked_and_does_not_stop_the_others(world):
    def refuse(text):
        if text == "bad":
            raise EngineError("a capture request failed") from ValueError("token id 9 is out of vocabulary")

    world.engine.before = refuse
    bad, good = world.save("bad", "good")
    world.encoder.start()
    [parked] = world.encoder.flush(WAIT).parked
    assert (parked.fact_id, parked.reason) == (bad.id, "a capture request failed")
    assert world.ready([good])


def test_flush_names_how_many_are_left_after_its_timeout(world):
    world.save("one", "two")
    world.encoder.pause()
    world.encoder.start()
    with pytest.raises(FlushTimeoutError, match=r"2 facts were still waiting .* after 0\.05 s.*call resume\(\)"):
        world.encoder.flush(0.05)
    world.encoder.resume()
    assert world.encoder.flush(WAIT).encoded == 2


def test_flush_of_one_scope_does_not_wait_for_another(world):
    [mine] = world.save("mine")
    world.save("stuck", scope=BOB)
    written, released = gate(world, "stuck")
    world.engine.before = lambda text: world.encoder.pause() if text == "stuck" else None
    world.encoder.start()
    assert written.wait(WAIT)
    released.set()
    world.encoder.flush(WAIT, scope=ALICE)
    assert world.ready([mine])


def test_flush_of_an_encoder_that_was_never_started_says_so(world):
    assert world.encoder.flush().encoded == 0
    world.save("one")
    with pytest.raises(EncodingError, match=r"not running and 1 facts wait; call start\(\)"):
        world.encoder.flush(WAIT)


def test_flush_reports_its_progress(opened):
    world = opened(seconds=0.002)
    world.save(*(f"fact {i}" for i in range(30)))
    world.encoder.start()
    seen = []
    world.encoder.flush(WAIT, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (30, 30)


def test_with_a_positional_policy_there_is_nothing_to_wait_for(opened):
    world = opened("prefix")
    world.save("one")
    world.encoder.start()
    assert world.encoder.flush().encoded == 0
    assert not world.encoder.running
    assert world.encoder.status().waiting == 0


def test_the_status_counts_what_waits_and_what_is_done(world):
    world.encoder.pause()
    world.save("one", "two")
    world.encoder.start()
    status = world.encoder.status()
    assert (status.running, status.paused, status.waiting, status.encoded) == (True, True, 2, 0)
    world.encoder.resume()
    world.encoder.flush(WAIT)
    world.encoder.stop()
    status = world.encoder.status()
    assert (status.running, status.waiting, status.in_flight, status.encoded) == (False, 0, 0, 2)


def test_a_concurrency_of_zero_is_refused(world):
    from inferscale_memory.encoding.encoder import BackgroundEncoder

    with pytest.raises(InvalidInputError, match="concurrency is 0; at least one"):
        BackgroundEncoder(
            world.store, world.ledger, world.chunks, world.engine, world.policy, lambda fact: "", concurrency=0
        )


def test_a_request_that_never_ends_does_not_keep_the_encoder_from_stopping(opened):
    world = opened(seconds=3600)
    [fact] = world.save("stuck")
    world.encoder.start()
    until(lambda: world.engine.at_once == 1)
    world.encoder.stop(timeout=0.01)
    assert not world.encoder.running
    # The engine may still write that chunk: nobody takes it over before the lease is over.
    again = opened()
    again.ledger.reset_pending()
    assert again.ledger.waiting(MODEL, again.policy.name, 10) == []
    assert again.ledger.unfinished(MODEL, again.policy.name) == 1
    assert not again.ready([fact])


def test_two_encoders_on_one_database_encode_every_fact_once(opened):
    first, second = opened(seconds=0.005), opened(seconds=0.005)
    facts = first.save(*(f"fact {i}" for i in range(16)))
    first.encoder.start()
    second.encoder.start()
    first.encoder.flush(WAIT)
    second.encoder.flush(WAIT)
    assert len(first.engine.texts) + len(second.engine.texts) == 16
    assert files(first) == set(first.ready(facts).values())


def test_a_store_that_fails_for_a_moment_delays_and_loses_nothing(world, monkeypatch):
    monkeypatch.setattr("inferscale_memory.encoding._loop._TROUBLE_PAUSE", 0.01)
    ready, troubles = world.ledger.ready, ["database is locked"]

    def unreliable(key):
        if troubles:
            raise StoreError(troubles.pop())
        return ready(key)

    monkeypatch.setattr(world.ledger, "ready", unreliable)
    facts = world.save("one", "two", "three")
    world.encoder.start()
    world.encoder.flush(WAIT)
    assert troubles == []
    assert files(world) == set(world.ready(facts).values())
    assert len(world.ready(facts)) == 3


def test_a_process_killed_while_it_encodes_loses_nothing(opened, tmp_path):
    world = opened()
    facts = world.save(*(f"fact {i}" for i in range(24)))
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("encode_forever.py")), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        until(lambda: child.poll() is not None or len(world.ready(facts)) >= 4)
        assert child.poll() is None
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    done = len(world.ready(facts))
    assert done < 24
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.encoder.stop(WAIT)
    assert len(world.engine.texts) == 24 - done
    assert files(world) == set(world.ready(facts).values())
    assert len(files(world)) == 24
    assert world.ledger.tombstones() == []


def test_a_folder_copied_without_its_chunks_is_encoded_anew(opened, tmp_path):
    world = opened()
    facts = world.save("one")
    world.encoder.start()
    world.encoder.flush(WAIT)
    world.encoder.stop()
    shutil.rmtree(tmp_path / "kv")
    again = opened()
    again.encoder.start()
    again.encoder.flush(WAIT)
    assert files(again) == set(again.ready(facts).values())


def until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
