from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from plumbing import ALICE, BOB, MODEL
from sqlalchemy import update
from sqlalchemy.orm import Session

from inferscale_memory.encoding.leases import LEASE
from inferscale_memory.encoding.ledger import ChunkLedger, ChunkRecord, chunk_owner
from inferscale_memory.encoding.policies import ContextItem
from inferscale_memory.encoding.purge import purge
from inferscale_memory.encoding.tables import EncodeLeaseRow
from inferscale_memory.errors import StoreError
from inferscale_memory.scope import Scope, digest

POLICY = "preceding:2:fact"


def record(fact, *context, key=None, policy=POLICY, turns=()):
    items = [ContextItem(f.text, fact_id=f.id, revision=f.revision) for f in context]
    items += [ContextItem("", turn_id=turn) for turn in turns]
    key = key or digest("test", fact.id, str(fact.revision), policy)
    return ChunkRecord(key, fact.id, fact.revision, fact.scope.principal, MODEL, policy, 7, tuple(items))


def encode(ledger, fact, *context, **options):
    """Record the chunk and say it is ready; returns its key."""
    entry = record(fact, *context, **options)
    assert ledger.begin(entry)
    assert ledger.ready(entry.key)
    return entry.key


def end_leases(world):
    """What time does to processes that no longer renew."""
    long_ago = datetime.now(UTC) - 2 * LEASE
    with world.store.transaction() as tx:
        tx.execute(update(EncodeLeaseRow).values(renewed_at=long_ago))


def another_process(world):
    return ChunkLedger(world.store.engine)


def test_a_ready_chunk_is_found_by_fact_model_and_policy(world):
    [fact] = world.save("Rex is a dog")
    key = encode(world.ledger, fact)
    found = world.ledger.lookup([fact.id, "nobody"], MODEL, POLICY)
    assert {i: (ref.key, ref.revision, ref.n_tokens) for i, ref in found.items()} == {fact.id: (key, 1, 7)}
    assert world.ledger.lookup([fact.id], digest("another model"), POLICY) == {}
    assert world.ledger.lookup([fact.id], MODEL, "none") == {}


def test_a_pending_chunk_is_not_handed_out(world):
    [fact] = world.save("Rex is a dog")
    assert world.ledger.begin(record(fact))
    assert world.ledger.lookup([fact.id], MODEL, POLICY) == {}


def test_a_chunk_of_an_old_revision_is_not_handed_out_and_the_fact_waits(world):
    [fact] = world.save("Rex is a dog")
    encode(world.ledger, fact)
    world.store.update(fact.id, ALICE, text="Rex is a cat")
    assert world.ledger.lookup([fact.id], MODEL, POLICY) == {}
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]


def test_facts_wait_until_they_are_being_encoded_and_are_unfinished_until_they_are_ready(world):
    one, other = world.save("one", "other")
    entry = record(one)
    assert world.ledger.waiting(MODEL, POLICY, 10) == [one.id, other.id]
    world.ledger.begin(entry)
    assert world.ledger.waiting(MODEL, POLICY, 10) == [other.id]
    assert world.ledger.unfinished(MODEL, POLICY) == 2
    world.ledger.ready(entry.key)
    assert world.ledger.unfinished(MODEL, POLICY) == 1


def test_the_queue_is_counted_by_scope(world):
    world.save("of alice in general")
    world.save("of one session", scope=Scope.of(user_id="alice", session_id="s"))
    world.save("of bob", scope=BOB)
    assert world.ledger.unfinished(MODEL, POLICY, ALICE) == 2
    assert world.ledger.unfinished(MODEL, POLICY, Scope.of(user_id="alice", session_id="other")) == 1
    assert len(world.ledger.waiting(MODEL, POLICY, 10, BOB)) == 1


def test_forgetting_a_fact_takes_the_chunks_of_those_who_saw_it(world):
    seen, seer, stranger = world.save("seen", "seer", "stranger")
    keys = [encode(world.ledger, seen), encode(world.ledger, seer, seen), encode(world.ledger, stranger)]
    forgotten = world.delete(seen)
    assert set(forgotten.keys) == set(keys[:2])
    assert forgotten.dependants == (seer.id,)
    assert world.ready([seen, seer, stranger]) == {stranger.id: keys[2]}
    assert set(world.ledger.tombstones()) == set(keys[:2])
    assert world.ledger.waiting(MODEL, POLICY, 10) == [seer.id]


def test_forgetting_reaches_every_model_and_policy(world):
    seen, seer = world.save("seen", "seer")
    keys = {encode(world.ledger, seer, seen, policy=policy) for policy in (POLICY, "preceding:9:fact")}
    assert set(world.delete(seen).keys) == keys


def test_forgetting_a_turn_takes_the_chunks_of_those_who_saw_it(world):
    first, second = world.say("Hello", "I have a dog")
    encode(world.ledger, second, turns=first.turn_ids)
    assert world.delete(first).dependants == (second.id,)


def test_an_update_of_a_fact_takes_its_dependants_too(world):
    seen, seer = world.save("seen", "seer")
    encode(world.ledger, seer, seen)
    assert world.update(seen, "changed").dependants == (seer.id,)


def test_forgetting_is_undone_with_its_transaction(world):
    [fact] = world.save("fact")
    key = encode(world.ledger, fact)

    def crash_while_forgetting():
        with world.store.transaction() as tx:
            world.ledger.forget([fact.id], tx=tx)
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash_while_forgetting()
    assert world.ready([fact]) == {fact.id: key}
    assert world.ledger.tombstones() == []


def test_forgetting_more_facts_than_one_statement_takes(world):
    facts = world.save(*(f"fact {i}" for i in range(600)))
    key = encode(world.ledger, facts[-1], facts[0])
    assert world.ledger.forget([fact.id for fact in facts[:550]]).keys == (key,)
    assert len(world.ledger.lookup([fact.id for fact in facts], MODEL, POLICY)) == 0


def test_nothing_is_encoded_for_a_fact_that_was_deleted_or_changed_before(world):
    gone, changed = world.save("gone", "changed")
    world.delete(gone)
    world.update(changed, "new")
    assert not world.ledger.begin(record(gone))
    assert not world.ledger.begin(record(changed))


def test_nothing_is_encoded_behind_what_was_deleted_or_changed_before(world):
    gone, changed, fact = world.save("gone", "changed", "fact")
    [said] = world.say("Hello")
    world.delete(gone)
    world.update(changed, "new")
    world.delete(said)
    assert not world.ledger.begin(record(fact, gone))
    assert not world.ledger.begin(record(fact, changed))
    assert not world.ledger.begin(record(fact, turns=said.turn_ids))


def test_a_chunk_is_not_ready_if_its_fact_was_deleted_while_it_was_encoded(world):
    [fact] = world.save("fact")
    entry = record(fact)
    world.ledger.begin(entry)
    world.delete(fact)
    assert not world.ledger.ready(entry.key)


def test_a_chunk_is_not_ready_if_its_context_changed_while_it_was_encoded_even_if_nobody_told_the_ledger(world):
    seen, seer = world.save("seen", "seer")
    entry = record(seer, seen)
    world.ledger.begin(entry)
    world.store.update(seen.id, ALICE, text="changed")
    assert not world.ledger.ready(entry.key)
    assert world.ledger.tombstones() == [entry.key]


def test_the_tombstone_of_a_chunk_in_flight_outlives_a_purge_until_its_encoder_is_done(world):
    [fact] = world.save("fact")
    entry = record(fact)
    world.ledger.begin(entry)
    world.delete(fact)
    purge(another_process(world), world.chunks)
    assert world.ledger.tombstones() == [entry.key]
    world.ledger.discard(entry.key)
    assert world.ledger.tombstones() == []


def test_the_tombstone_of_a_chunk_in_flight_is_purged_once_its_process_is_dead(world):
    [fact] = world.save("fact")
    world.ledger.begin(record(fact))
    world.delete(fact)
    end_leases(world)
    purge(another_process(world), world.chunks)
    assert world.ledger.tombstones() == []


def test_two_processes_never_purge_the_same_tombstone(world):
    [fact] = world.save("fact")
    key = encode(world.ledger, fact)
    world.delete(fact)
    assert world.ledger.claim_tombstones() == [key]
    assert another_process(world).claim_tombstones() == []


def test_a_deleted_chunk_is_not_encoded_anew_under_its_key_before_its_file_is_purged(world):
    [fact] = world.save("fact")
    key = encode(world.ledger, fact)
    world.ledger.lost([key])
    assert not world.ledger.begin(record(fact))
    purge(world.ledger, world.chunks)
    assert world.ledger.begin(record(fact))


def test_a_chunk_key_shared_by_two_facts_is_refused(world):
    one, other = world.save("one", "other")
    key = encode(world.ledger, one)
    with pytest.raises(StoreError, match=f"stands for fact {one.id} and was to be encoded for {other.id} too"):
        world.ledger.begin(record(other, key=key))


def test_the_owner_of_a_chunk_key_is_different_for_every_fact_revision_and_policy():
    owners = {chunk_owner("p", f, r, policy) for f in ("f", "g") for r in (1, 2) for policy in ("none", "preamble")}
    assert len(owners) == 8


def test_a_live_process_keeps_what_it_is_encoding(world):
    [fact] = world.save("fact")
    other = another_process(world)
    other.begin(record(fact))
    assert world.ledger.reset_pending() == 0
    assert not world.ledger.begin(record(fact))
    assert world.ledger.waiting(MODEL, POLICY, 10) == []


def test_what_a_dead_process_left_pending_waits_again_and_its_file_is_purged(world):
    [fact] = world.save("fact")
    another_process(world).begin(record(fact))
    end_leases(world)
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]
    assert world.ledger.reset_pending() == 1
    assert world.ledger.tombstones() == [record(fact).key]


def test_a_process_that_died_on_this_host_is_not_waited_for(world, monkeypatch):
    [fact] = world.save("fact")
    another_process(world).begin(record(fact))

    def no_such_process(pid, signal):
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", no_such_process)
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]


def test_a_pending_chunk_may_be_begun_again_by_its_own_process(world):
    seen, fact = world.save("seen", "fact")
    assert world.ledger.begin(record(fact, seen))
    assert world.ledger.begin(record(fact))
    world.ledger.ready(record(fact).key)
    assert world.delete(seen).dependants == ()


def test_chunks_of_facts_that_changed_behind_the_ledgers_back_are_swept(world):
    [fact] = world.save("fact")
    key = encode(world.ledger, fact)
    world.store.delete(fact.id, ALICE)
    assert world.ledger.reset_pending() == 1
    assert world.ledger.tombstones() == [key]


def test_a_parked_fact_does_not_wait_until_it_is_retried(world):
    [fact] = world.save("fact")
    world.ledger.failed(fact.id, 1, MODEL, POLICY, "no reason", park=False)
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]
    world.ledger.failed(fact.id, 1, MODEL, POLICY, "too long", park=True)
    assert world.ledger.waiting(MODEL, POLICY, 10) == []
    [parked] = world.ledger.parked(MODEL, POLICY)
    assert (parked.fact_id, parked.attempts, parked.reason) == (fact.id, 2, "too long")
    assert world.ledger.retry_parked(MODEL, POLICY) == 1
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]


def test_an_updated_fact_is_not_parked_any_more(world):
    [fact] = world.save("fact")
    world.ledger.failed(fact.id, 1, MODEL, POLICY, "too long", park=True)
    world.update(fact, "shorter")
    assert world.ledger.parked(MODEL, POLICY) == []
    assert world.ledger.waiting(MODEL, POLICY, 10) == [fact.id]


def test_the_reason_of_a_failure_goes_with_its_fact(world):
    [fact] = world.save("my secret")
    world.ledger.failed(fact.id, 1, MODEL, POLICY, "cannot encode 'my secret'", park=True)
    world.delete(fact)
    world.ledger.failed(fact.id, 1, MODEL, POLICY, "late: 'my secret'", park=True)
    with Session(world.store.engine) as session:
        assert session.connection().exec_driver_sql("SELECT count(*) FROM encode_failures").scalar() == 0


def test_positional_chunks_are_asked_for_by_key(world):
    one, other = world.save("one", "other")
    keys = [encode(world.ledger, other, one, key=digest(str(i)), policy="prefix") for i in range(2)]
    assert world.ledger.ready_keys(MODEL, "prefix", [keys[0], digest("unknown")]) == {keys[0]}
    assert world.ledger.ready_keys(MODEL, "prefix") == set(keys)


def test_leases_of_long_dead_processes_are_removed(world):
    world.ledger.heartbeat()
    end_leases(world)
    another_process(world).reset_pending()
    with Session(world.store.engine) as session:
        assert session.query(EncodeLeaseRow).count() == 0


def test_a_lease_is_renewed_in_place(world):
    world.ledger.heartbeat()
    end_leases(world)
    world.ledger.heartbeat()
    with Session(world.store.engine) as session:
        [lease] = session.query(EncodeLeaseRow).all()
        assert datetime.now(UTC) - lease.renewed_at < timedelta(seconds=30)
