"""A memory with an engine: what is encoded, what another model finds, what a deletion takes along."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace

import pytest

from inferscale_memory import EncodingError, EngineError, FlushTimeoutError
from inferscale_memory.scope import Scope
from tests.unit.encoding.plumbing import MODEL
from tests.unit.memory.standin import StandIn

OTHER = hashlib.sha256(b"another model").hexdigest()
ALICE = Scope.of(user_id="alice")


@pytest.fixture
def engine(home):
    return StandIn(home)


@pytest.fixture
def encoding(opened, engine):
    """A memory with an engine that encodes."""
    return opened(engine, policy="preceding:1:fact")


def resident(memory, handle):
    return [fact.resident for fact in memory.explain(handle).facts]


def chunk_files(home):
    return sorted(path.name for path in (home / "memory" / "kv").rglob("*.safetensors"))


def test_facts_are_encoded_and_explain_says_so(encoding):
    encoding.encoder.pause()
    encoding.add(["one dog", "two dogs"], user_id="alice")
    handle = encoding.recall("dog", user_id="alice")
    assert resident(encoding, handle) == [False, False]
    with pytest.raises(FlushTimeoutError, match=r"2 facts were still waiting.*safe as text.*paused"):
        encoding.flush(0.05)
    encoding.encoder.resume()
    assert encoding.flush(20).encoded == 2
    assert resident(encoding, handle) == [True, True]
    assert encoding.status().waiting == 0


def test_a_fact_that_fits_no_prompt_is_parked_with_its_reason_and_kept_as_text(opened, home):
    memory = opened(StandIn(home, max_model_len=40), policy="preamble")
    memory.add(["short", "long " * 50], user_id="alice")
    (parked,) = memory.flush(20, user_id="alice").parked
    assert "at most 37 fit the model's length of 40" in parked.reason
    assert len(memory.recall("long", user_id="alice").facts) == 2


def test_everything_is_a_miss_to_another_model_and_is_encoded_again_beside_the_old(opened, home, engine):
    with opened(engine) as memory:
        memory.add(["one dog", "two dogs"], user_id="alice")
        memory.flush(20)
        handle = memory.recall("dog", user_id="alice")
        old = chunk_files(home)
    other = StandIn(home, fingerprint=OTHER)
    memory = opened(other, encode=False)
    assert resident(memory, handle) == [False, False]
    assert other.resolver.resolve([handle], None).keys == {}
    memory.close()
    memory = opened(other)
    assert memory.flush(20).encoded == 2
    assert resident(memory, handle) == [True, True]
    assert set(old) < set(chunk_files(home))
    memory.close()
    with opened(StandIn(home)) as first:
        assert resident(first, handle) == [True, True]
        first.delete_all(user_id="alice")
        assert chunk_files(home) == []


def test_another_policy_misses_too(opened, home, engine):
    with opened(engine, policy="preamble") as memory:
        memory.add("one dog", user_id="alice")
        memory.flush(20)
        handle = memory.recall("dog", user_id="alice")
    with opened(StandIn(home), policy="none", encode=False) as memory:
        assert resident(memory, handle) == [False]


def test_deleting_a_fact_takes_its_chunk_and_those_encoded_behind_it(encoding, engine, home):
    facts = encoding.add(["one dog", "two dogs", "three dogs"], user_id="alice").facts
    encoding.flush(20)
    before = chunk_files(home)
    encoding.encoder.pause()
    epoch = encoding.store.epoch(ALICE)
    encoding.delete(facts[0].id, user_id="alice")
    assert len(chunk_files(home)) == 1
    assert engine.deletions_followed == 1
    assert encoding.store.epoch(ALICE) > epoch
    encoding.encoder.resume()
    encoding.flush(20)
    after = chunk_files(home)
    assert len(after) == 2
    assert len(set(after) & set(before)) == 1


def test_an_update_is_encoded_again_and_a_change_of_nothing_is_not(encoding, home):
    facts = encoding.add(["one dog", "two dogs"], user_id="alice").facts
    encoding.flush(20)
    before = chunk_files(home)
    encoding.update(facts[0].id, text="one dog", user_id="alice")
    assert chunk_files(home) == before
    encoding.update(facts[0].id, text="one cat", user_id="alice")
    encoding.flush(20)
    assert len(chunk_files(home)) == 2
    assert not set(before) & set(chunk_files(home))


def test_a_chunk_of_a_revision_that_was_just_replaced_is_not_used_for_the_text_read_before(
    encoding, engine, monkeypatch
):
    (fact,) = encoding.add("one dog", user_id="alice").facts
    encoding.flush(20)
    handle = encoding.recall("dog", user_id="alice")
    assert set(engine.resolver.resolve([handle], None).keys) == {fact.id}
    lookup = encoding.ledger.lookup_all

    def updated_meanwhile(*arguments):
        return {
            fact_id: {name: replace(ref, revision=ref.revision + 1) for name, ref in refs.items()}
            for fact_id, refs in lookup(*arguments).items()
        }

    monkeypatch.setattr(encoding.ledger, "lookup_all", updated_meanwhile)
    assert engine.resolver.resolve([handle], None).keys == {}


def test_a_deletion_between_reading_facts_and_salting_leaves_the_old_epochs_salt(encoding, engine, monkeypatch):
    facts = encoding.add(["one dog", "two dogs"], user_id="alice").facts
    handle = encoding.recall("dog", user_id="alice")
    before = engine.resolver.resolve([handle], None)
    read = encoding.store.get_many

    def deleted_meanwhile(ids):
        found = read(ids)
        if threading.current_thread() is not threading.main_thread():
            return found  # the encoder reads facts too
        monkeypatch.undo()
        encoding.delete(facts[0].id, user_id="alice")
        return found

    monkeypatch.setattr(encoding.store, "get_many", deleted_meanwhile)
    torn = engine.resolver.resolve([handle], None)
    assert len(torn.facts) == 2
    assert torn.salt(True) == before.salt(True)
    assert engine.resolver.resolve([handle], None).salt(True) != before.salt(True)


def test_refreshed_facts_of_a_shrunken_handle_stay_text(encoding, engine):
    facts = encoding.add([f"dog {n} barks" for n in "abcde"], user_id="alice").facts
    encoding.flush(20)
    handle = encoding.recall("dog", 5, 5, user_id="alice")
    for fact in facts[:3]:
        encoding.delete(fact.id, user_id="alice")
    resolution = engine.resolver.resolve([handle], None)
    assert (resolution.facts, len(resolution.refreshed)) == ((), 2)


def test_foreign_forged_and_unknown_handles_resolve_to_nothing_beside_good_ones(encoding, engine, caplog):
    encoding.add("Alice's dog", user_id="alice")
    encoding.add("Bob's dog", user_id="bob")
    alice, bob = (encoding.recall("dog", user_id=user) for user in ("alice", "bob"))
    forged = str(alice)[:-3] + "xy⟧"
    resolution = engine.resolver.resolve([alice, bob, forged, "⟦kv:x⟧"], ALICE)
    assert [fact.tokens for fact in resolution.facts] == [engine.prompt.fact_tokens("Alice's dog")]
    assert engine.resolver.resolve([bob, forged], ALICE) is None
    assert caplog.text.count("a handle was removed from the prompt") == 5


def test_a_chunk_file_that_is_gone_or_damaged_is_encoded_again(encoding, engine, home):
    encoding.add(["one dog", "two dogs"], user_id="alice")
    encoding.flush(20)
    gone, damaged = (home / "memory" / "kv").rglob("*.safetensors")
    gone.unlink()
    damaged.write_bytes(b"damaged")
    engine.resolver.missing([*encoding.chunks.keys(), gone.name.split(".")[0]])
    encoding.flush(20)
    assert len(chunk_files(home)) == 2
    encoding.chunks.check_integrity()


def test_a_deletion_succeeds_though_the_engine_is_dead(encoding, engine, monkeypatch, caplog):
    (fact,) = encoding.add("one dog", user_id="alice").facts
    encoding.flush(20)

    def dead():
        raise EngineError("the engine died.")

    monkeypatch.setattr(engine, "follow_deletions", dead)
    assert encoding.delete(fact.id, user_id="alice").text == "one dog"
    assert "could not be told of a deletion: the engine died" in caplog.text


def test_two_memories_on_one_home_both_encode_and_no_fact_is_encoded_twice(opened, home):
    engines = [StandIn(home, seconds=0.002) for _ in range(2)]
    one, two = (opened(engine, policy="preamble") for engine in engines)
    for n in range(20):
        (one, two)[n % 2].add(f"dog {n}", user_id="alice")
    one.flush(20)
    two.flush(20)
    done = [text for engine in engines for text in engine.texts]
    assert sorted(done) == sorted(f"dog {n}" for n in range(20))
    assert resident(two, two.recall("dog", 20, user_id="alice")) == [True] * 20
    fact = one.list(user_id="alice").facts[0]
    one.delete(fact.id, user_id="alice")
    assert len(two.recall("dog", 20, user_id="alice").facts) == 19
    assert len(chunk_files(home)) == 19


def test_giving_up_a_flush_ends_the_wait_not_the_encoding(encoding):
    encoding.encoder.pause()
    encoding.add("one dog", user_id="alice")
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(EncodingError, match="given up with 1 facts left"):
        encoding.encoder.flush(given_up=given_up)
    encoding.encoder.resume()
    assert encoding.flush(20).parked == ()
    assert encoding.engine.fingerprint == MODEL
