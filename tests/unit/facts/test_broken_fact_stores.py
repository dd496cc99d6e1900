import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError

from inferscale_memory.db import open_database
from inferscale_memory.errors import StoreError
from inferscale_memory.facts import FactStore, NewFact


def with_pragma(path, pragma):
    engine = open_database(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def _pragma(connection, _):
        connection.execute(f"PRAGMA {pragma}")

    return FactStore(engine)


def test_a_full_disk_is_a_store_error_and_loses_nothing_saved(store, path, alice):
    store.add([NewFact("saved before")], alice)
    # Fewer pages than the file has: SQLite then allows no new one, as on a full disk.
    full = with_pragma(path, "max_page_count=1")
    with pytest.raises(StoreError, match=rf"{path}.*full.*free some space"):
        full.add([NewFact("x" * 30_000)], alice)
    assert [fact.text for fact in full.list(alice).facts] == ["saved before"]
    assert store.add([NewFact("room again")], alice).errors == ()


def test_a_read_only_store_answers_and_refuses_to_save(store, path, alice):
    (fact,) = store.add([NewFact("saved before")], alice).facts
    read_only = with_pragma(path, "query_only=ON")
    with pytest.raises(StoreError, match=rf"{path}.*readonly.*writable"):
        read_only.add([NewFact("new")], alice)
    with pytest.raises(StoreError, match="readonly"):
        read_only.delete(fact.id, alice)
    assert read_only.get(fact.id, alice) == fact


def test_a_database_without_tables_says_how_to_make_them(tmp_path, alice):
    store = FactStore(create_engine(f"sqlite:///{tmp_path / 'empty.db'}"))
    with pytest.raises(StoreError, match=r"migrations\.upgrade"):
        store.count(alice)


def test_a_missing_folder_is_named(tmp_path, alice):
    store = FactStore(create_engine(f"sqlite:///{tmp_path / 'no' / 'such' / 'facts.db'}"))
    with pytest.raises(StoreError, match=r"no/such/facts\.db.*folder exists"):
        store.count(alice)


def test_a_file_that_is_no_database_is_named(tmp_path, alice):
    file = tmp_path / "facts.db"
    file.write_bytes(b"certainly not a database file " * 100)
    with pytest.raises(StoreError, match=r"facts\.db.*not a database"):
        FactStore(create_engine(f"sqlite:///{file}")).count(alice)


def test_a_store_held_by_another_process_is_a_store_error_in_the_end(store, path, alice):
    impatient = with_pragma(path, "busy_timeout=50")
    with store.transaction(), pytest.raises(StoreError, match=r"locked.*another process"):
        impatient.add([NewFact("new")], alice)


def test_no_error_repeats_what_was_being_saved(path, store, alice):
    full = with_pragma(path, "max_page_count=1")
    with pytest.raises(StoreError) as caught:
        full.add([NewFact("PRIVATEWORDS " * 2000)], alice)
    assert "PRIVATEWORDS" not in str(caught.value)


def test_a_clash_with_another_writer_is_tried_again(store, alice, monkeypatch):
    from inferscale_memory.facts import store as module

    real, calls = module.save, []

    def clash_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))
        return real(*arguments)

    monkeypatch.setattr(module, "save", clash_once)
    assert store.add([NewFact("fact")], alice).created != ()
    assert len(calls) == 2


def test_a_clash_that_does_not_end_is_a_store_error(store, alice, monkeypatch):
    def clash(*_):
        raise IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))

    monkeypatch.setattr("inferscale_memory.facts.store.save", clash)
    with pytest.raises(StoreError, match="5 attempts clashed"):
        store.add([NewFact("fact")], alice)


def test_a_limit_below_one_is_refused(engine):
    with pytest.raises(ValueError, match="max_fact_chars must be at least 1, got 0"):
        FactStore(engine, max_fact_chars=0)


def test_a_database_in_memory_works_on_one_thread(alice):
    from inferscale_memory import migrations

    engine = open_database("sqlite://")
    migrations.upgrade(engine)
    store = FactStore(engine)
    (fact,) = store.add([NewFact("volatile")], alice).facts
    assert store.delete(fact.id, alice) == fact
