import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from inferscale_memory.db import Base, open_database
from inferscale_memory.errors import HandleError, InvalidInputError, StoreError
from inferscale_memory.handles import DEFAULT_TTL, HandleBook, HandleRow, SecretRing
from inferscale_memory.handles.text import CLOSING, OPENING, decode_letters, encode_letters
from inferscale_memory.scope import Scope

ROOT = Path(__file__).parents[3]
ALICE = Scope.of(user_id="alice")
FACTS = [("f1", 1), ("f2", 3)]
PAYLOAD_BYTES = 54


def reason(book, token, **options):
    with pytest.raises(HandleError) as caught:
        book.open(token, **options)
    return caught.value.reason


def test_a_handle_opens_to_what_it_was_minted_for(book, now):
    scope = Scope.of(user_id="алиса", agent_id="助手", session_id="s", tenant_id="t")
    record = book.open(book.mint(scope, FACTS, 1, now=now), now=now)
    assert (record.scope, record.facts, record.refresh) == (scope, tuple(FACTS), 1)
    assert record.created_at == now


def test_a_handle_of_no_facts_opens_to_none(book):
    assert book.open(book.mint(ALICE, [])).facts == ()


def test_a_handle_is_letters_only_inside_its_brackets(book):
    token = book.mint(ALICE, FACTS)
    assert token.startswith("⟦kv:")
    assert token.endswith("⟧")
    assert token[4:-1].isascii()
    assert token[4:-1].isalpha()


def test_the_same_facts_give_the_same_handle_within_a_bucket(book, now):
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    first = book.mint(ALICE, FACTS, 1, now=midnight)
    assert book.mint(ALICE, FACTS, 1, now=midnight + timedelta(hours=23, minutes=59)) == first
    assert book.mint(ALICE, FACTS, 1, now=midnight + timedelta(days=1)) != first


@pytest.mark.parametrize(
    ("scope", "facts", "refresh"),
    [
        (ALICE, [("f2", 3), ("f1", 1)], 0),
        (ALICE, [("f1", 1)], 0),
        (ALICE, [("f1", 2), ("f2", 3)], 0),
        (ALICE, [("f11", 1), ("f2", 3)], 0),
        (ALICE, FACTS, 1),
        (Scope.of(user_id="bob"), FACTS, 0),
        (Scope.of(user_id="alice", session_id="s"), FACTS, 0),
        (Scope.of(agent_id="alice"), FACTS, 0),
        (Scope.of(user_id="alice", tenant_id="other"), FACTS, 0),
    ],
)
def test_the_handle_changes_with_order_ids_revisions_refresh_and_scope(book, now, scope, facts, refresh):
    assert book.mint(scope, facts, refresh, now=now) != book.mint(ALICE, FACTS, 0, now=now)


@given(offset=st.integers(0, 10**7), ttl=st.integers(1, 10**6), part=st.floats(0, 1, exclude_max=True, allow_nan=False))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_handle_lives_for_its_ttl_and_not_past_twice_of_it(engine, ring, now, offset, ttl, part):
    book = HandleBook(engine, ring, timedelta(seconds=ttl))
    start = now + timedelta(seconds=offset)
    token = book.mint(ALICE, FACTS, now=start)
    assert book.open(token, now=start + timedelta(seconds=ttl * part)).facts == tuple(FACTS)
    assert reason(book, token, now=start + timedelta(seconds=2 * ttl)) == "expired"


def test_the_default_life_is_a_day(book, now):
    assert timedelta(days=1) == DEFAULT_TTL
    assert now + DEFAULT_TTL <= book.open(book.mint(ALICE, FACTS, now=now), now=now).expires_at <= now + 2 * DEFAULT_TTL


@pytest.mark.parametrize("token", ["", "hello", "⟦kv:⟧", "⟦kv:abc⟧", "⟦kv:" + "A" * 76 + "⟧", "⟦kv:" + "z" * 76 + "⟧"])
def test_what_is_no_handle_is_malformed(book, token):
    assert reason(book, token) == "malformed"


def test_a_cut_handle_is_malformed(book):
    token = book.mint(ALICE, FACTS)
    assert reason(book, token[:-1]) == "malformed"
    assert reason(book, token[:-5] + CLOSING) == "malformed"


@given(position=st.integers(8, PAYLOAD_BYTES * 8 - 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_bit_behind_the_version_can_be_changed(book, position):
    token = book.mint(ALICE, FACTS)
    payload = bytearray(decode_letters(token[4:-1], PAYLOAD_BYTES))
    payload[position // 8] ^= 1 << (position % 8)
    assert reason(book, OPENING + encode_letters(bytes(payload)) + CLOSING) == "forged"


def test_another_version_is_malformed(book):
    payload = bytearray(decode_letters(book.mint(ALICE, FACTS)[4:-1], PAYLOAD_BYTES))
    payload[0] = 2
    assert reason(book, OPENING + encode_letters(bytes(payload)) + CLOSING) == "malformed"


def test_a_handle_signed_by_another_server_is_forged(book, engine):
    other = HandleBook(engine, SecretRing(b"o" * 32))
    assert reason(book, other.mint(ALICE, FACTS)) == "forged"


def test_a_handle_of_another_database_is_unknown(book, ring, tmp_path):
    elsewhere = open_database(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(elsewhere, tables=[HandleRow.__table__])
    assert reason(book, HandleBook(elsewhere, ring).mint(ALICE, FACTS)) == "unknown"


@pytest.mark.parametrize(
    "caller",
    [
        Scope.of(user_id="bob"),
        Scope.of(agent_id="alice"),
        Scope.of(session_id="alice"),
        Scope.of(user_id="alice", tenant_id="other"),
    ],
)
def test_a_handle_is_foreign_to_every_other_owner(book, caller):
    token = book.mint(ALICE, FACTS)
    assert book.open(token, ALICE).scope == ALICE
    assert reason(book, token, scope=caller) == "foreign"


def test_a_handle_opens_to_whoever_could_have_recalled_its_facts_and_to_no_other_session(book):
    monday, tuesday = (Scope.of(user_id="alice", session_id=day) for day in ("monday", "tuesday"))
    assert book.open(book.mint(ALICE, FACTS), monday).scope == ALICE
    assert book.open(book.mint(monday, FACTS), ALICE).scope == monday
    assert reason(book, book.mint(monday, FACTS), scope=tuesday) == "foreign"


def test_every_refusal_reads_the_same_to_an_outsider(book, engine, now):
    token = book.mint(ALICE, FACTS, now=now)
    messages = set()
    for attempt, options in [
        ("⟦kv:abc⟧", {}),
        (HandleBook(engine, SecretRing(b"o" * 32)).mint(ALICE, FACTS, now=now), {}),
        (token, {"scope": Scope.of(user_id="bob")}),
        (token, {"now": now + timedelta(days=9)}),
    ]:
        with pytest.raises(HandleError, match="resolves to nothing here") as caught:
            book.open(attempt, **{"now": now, **options})
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_record_moved_to_another_scope_in_the_database_is_refused(book, engine):
    token = book.mint(ALICE, FACTS)
    with Session(engine) as session, session.begin():
        session.execute(update(HandleRow).values(user_id="bob"))
    assert reason(book, token) == "forged"


def test_another_book_on_the_same_database_and_secret_opens_the_handle(book, engine, ring):
    assert HandleBook(engine, ring).open(book.mint(ALICE, FACTS)).facts == tuple(FACTS)


def test_a_handle_outlives_a_rotation_only_as_long_as_its_grace(book, ring, now):
    token = book.mint(ALICE, FACTS, now=now)
    ring.rotate(timedelta(hours=1), now=now)
    assert book.open(token, now=now + timedelta(minutes=59)).facts == tuple(FACTS)
    assert reason(book, token, now=now + timedelta(hours=1)) == "forged"
    assert book.mint(ALICE, FACTS, now=now) != token


def test_purging_removes_expired_records_only(book, engine, now):
    old = book.mint(ALICE, FACTS, now=now)
    new = book.mint(ALICE, FACTS[:1], now=now + timedelta(days=5))
    assert book.purge_expired(now=now + timedelta(days=5)) == 1
    with Session(engine) as session:
        assert len(session.scalars(select(HandleRow)).all()) == 1
    assert book.open(new, now=now + timedelta(days=5)).facts == (("f1", 1),)
    assert reason(book, old, now=now) == "unknown"


def test_minting_again_later_keeps_the_record_for_the_later_handle(book, now):
    early = book.mint(ALICE, FACTS, now=now)
    late = book.mint(ALICE, FACTS, now=now + timedelta(days=1))
    assert book.purge_expired(now=book.open(early, now=now).expires_at) == 0
    assert book.open(late, now=now + timedelta(days=2)).facts == tuple(FACTS)


def test_an_earlier_clock_never_shortens_a_record(book, now):
    late = book.mint(ALICE, FACTS, now=now + timedelta(days=3))
    book.mint(ALICE, FACTS, now=now)
    assert book.purge_expired(now=now + timedelta(days=3)) == 0
    assert book.open(late, now=now + timedelta(days=4)).facts == tuple(FACTS)


def test_forgotten_facts_drop_out_and_the_handle_still_resolves(book):
    both, only, other = book.mint(ALICE, FACTS), book.mint(ALICE, FACTS[:1]), book.mint(ALICE, [("f3", 1)])
    assert book.forget_facts(["f1"]) == 2
    assert book.open(both).facts == (("f2", 3),)
    assert book.open(only).facts == ()
    assert book.open(other).facts == (("f3", 1),)


def test_forgetting_joins_the_callers_transaction(book, engine):
    token = book.mint(ALICE, FACTS)
    with Session(engine) as session:
        assert book.forget_facts({"f1", "f2"}, session, scope=ALICE) == 1
        session.rollback()
    assert book.open(token).facts == tuple(FACTS)


def test_forgetting_within_a_scope_looks_at_its_owner_only(book):
    bobs = book.mint(Scope.of(user_id="bob"), FACTS)
    alices = book.mint(Scope.of(user_id="alice", session_id="s"), FACTS)
    assert book.forget_facts(["f1"], scope=ALICE) == 1
    assert book.open(bobs).facts == tuple(FACTS)
    assert book.open(alices).facts == (("f2", 3),)


def test_threads_minting_the_same_handle_at_once_agree(engine, ring, now):
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: HandleBook(engine, ring).mint(ALICE, FACTS, now=now), range(24)))
    assert len(tokens) == 1
    with Session(engine) as session:
        assert len(session.scalars(select(HandleRow)).all()) == 1


def test_a_negative_refresh_is_refused(book):
    with pytest.raises(InvalidInputError, match="refresh is -1"):
        book.mint(ALICE, FACTS, -1)


def test_a_fact_listed_twice_is_refused(book):
    with pytest.raises(InvalidInputError, match="name one fact twice"):
        book.mint(ALICE, [("f1", 1), ("f1", 2)])


def test_a_life_under_a_second_is_refused(engine, ring):
    with pytest.raises(InvalidInputError, match="at least one second"):
        HandleBook(engine, ring, timedelta(milliseconds=5))


def test_a_database_without_the_table_is_a_store_error(ring, tmp_path):
    book = HandleBook(open_database(f"sqlite:///{tmp_path}/empty.db"), ring)
    with pytest.raises(StoreError, match="table of KV handles cannot be written"):
        book.mint(ALICE, FACTS)


def test_a_record_keeps_the_ranks_of_its_facts(book):
    facts = [("f1", 1), ("f2", 3), ("f3", 1)]
    assert book.open(book.mint(ALICE, facts)).ranks == (2, 1, 0)
    token = book.mint(ALICE, facts, ranks=[0, 2, 1])
    assert book.open(token).ranks == (0, 2, 1)
    assert token != book.mint(ALICE, facts)
    book.forget_facts(["f2"])
    assert (book.open(token).facts, book.open(token).ranks) == ((("f1", 1), ("f3", 1)), (0, 1))


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 2], [1, 2], [-1, 0]])
def test_ranks_that_are_no_ranking_are_refused(book, ranks):
    with pytest.raises(InvalidInputError, match="give each of 0 to n - 1 once"):
        book.mint(ALICE, FACTS, ranks=ranks)


def test_a_record_of_an_earlier_version_has_the_best_last(book, engine):
    token = book.mint(ALICE, FACTS)
    with Session(engine) as session, session.begin():
        session.execute(update(HandleRow).values(facts=[["f1", 1], ["f2", 3]]))
    assert book.open(token).ranks == (1, 0)


def test_minting_does_not_wait_for_the_disk_and_every_other_commit_does(book, engine, monkeypatch):
    during = []
    insert = book._lives_until

    def spy(connection, key, wanted):
        during.append(connection.exec_driver_sql("PRAGMA synchronous").scalar())
        return insert(connection, key, wanted)

    monkeypatch.setattr(book, "_lives_until", spy)
    book.mint(ALICE, FACTS)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    assert during == [1]


def test_a_connection_that_failed_while_minting_is_durable_again(book, engine, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(book, "_lives_until", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        book.mint(ALICE, FACTS)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_handle_minted_by_a_process_that_dies_at_once_opens_in_the_next(tmp_path, ring, engine):
    script = f"""
import os, sys
from inferscale_memory.db import open_database
from inferscale_memory.handles import HandleBook, SecretRing
from inferscale_memory.scope import Scope
book = HandleBook(open_database("sqlite:///{tmp_path}/memory.db"), SecretRing(b"s" * 32))
sys.stdout.buffer.write(book.mint(Scope.of(user_id="alice"), [("f1", 1)]).encode())
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert died.returncode == -9, died.stderr
    assert HandleBook(engine, ring).open(died.stdout.decode()).facts == (("f1", 1),)
