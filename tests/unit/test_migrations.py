import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from inferscale_memory import migrations
from inferscale_memory.db import Base, open_database
from inferscale_memory.errors import StoreError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'facts.db'}")
    yield engine
    engine.dispose()


def test_an_empty_database_gets_every_table_of_the_library(engine):
    assert migrations.revision(engine) is None
    migrations.upgrade(engine)
    migrations.import_tables()
    made = set(inspect(engine).get_table_names())
    assert made == {*Base.metadata.tables, "alembic_version"}
    assert {"facts", "turns", "fact_changes", "handles"} <= made


def test_the_schema_made_is_the_one_that_the_models_describe(engine):
    migrations.upgrade(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_upgrading_again_changes_nothing(engine, tmp_path):
    migrations.upgrade(engine)
    engine.dispose()
    before = (tmp_path / "facts.db").read_bytes()
    migrations.upgrade(engine)
    engine.dispose()
    assert (tmp_path / "facts.db").read_bytes() == before


def test_a_database_made_before_there_were_items_gets_their_tables_and_keeps_its_facts(engine):
    migrations.upgrade(engine)
    with engine.begin() as connection:
        made_since = Base.metadata.tables["item_facts"], Base.metadata.tables["items"]
        Base.metadata.drop_all(connection, tables=made_since)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        connection.exec_driver_sql("UPDATE store_clock SET value = 41")
    assert "items" not in inspect(engine).get_table_names()
    migrations.upgrade(engine)
    assert migrations.revision(engine) == "0003"
    assert set(inspect(engine).get_table_names()) == {*Base.metadata.tables, "alembic_version"}
    assert {index["name"] for index in inspect(engine).get_indexes("items")} >= {"ix_items_tenant_path"}
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT value FROM store_clock").scalar() == 41


def test_a_database_made_before_chunks_could_be_stale_keeps_its_chunks_and_none_of_them_is(engine):
    migrations.upgrade(engine)
    with engine.begin() as connection:
        Base.metadata.drop_all(connection, tables=[Base.metadata.tables["encode_announcements"]])
        connection.exec_driver_sql("DROP INDEX ix_chunks_stale")
        for table, column in (("chunks", "stale"), ("chunks", "reach"), ("chunk_context", "kept")):
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
        connection.exec_driver_sql(
            "INSERT INTO chunks (key, fact_id, revision, principal, fingerprint, policy, n_tokens, state, created_at) "
            "VALUES ('k', 'f', 1, 'p', 'm', 'preamble', 3, 'ready', '2026-01-01 00:00:00')"
        )
        connection.exec_driver_sql("INSERT INTO chunk_context (chunk_key, fact_id, revision) VALUES ('k', 'g', 1)")
    migrations.upgrade(engine)
    assert migrations.revision(engine) == "0003"
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT key, stale, reach FROM chunks").all() == [("k", 0, None)]
        assert connection.exec_driver_sql("SELECT fact_id, kept FROM chunk_context").all() == [("g", 1)]
    assert {"ix_chunks_stale"} <= {index["name"] for index in inspect(engine).get_indexes("chunks")}
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_database_of_a_newer_version_is_refused_by_revision(engine):
    migrations.upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"facts\.db has schema revision '9999'.*upgrade the package"):
        migrations.upgrade(engine)
    assert migrations.revision(engine) == "9999"


def test_a_migration_that_fails_half_way_leaves_the_database_empty(engine, monkeypatch):
    def fail(*_, **__):
        real(*_, **__)
        raise RuntimeError("power cut")

    real = Base.metadata.create_all
    with monkeypatch.context() as patch:
        patch.setattr(Base.metadata, "create_all", fail)
        with pytest.raises(RuntimeError, match="power cut"):
            migrations.upgrade(engine)
    assert inspect(engine).get_table_names() == []
    migrations.upgrade(engine)
    assert migrations.revision(engine) is not None


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path):
    script = (
        "import sys; from inferscale_memory import migrations; from inferscale_memory.db import open_database; "
        "migrations.upgrade(open_database(sys.argv[1]))"
    )
    command = [sys.executable, "-c", script, f"sqlite:///{tmp_path / 'new.db'}"]
    workers = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [worker.communicate(timeout=120)[1] for worker in workers] == [""] * 3
    assert [worker.returncode for worker in workers] == [0] * 3


def test_a_file_that_another_process_is_just_making_is_waited_for(tmp_path):
    maker = sqlite3.connect(tmp_path / "new.db", check_same_thread=False, isolation_level=None)
    maker.execute("CREATE TABLE t (x)")
    maker.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.2, maker.execute, ["COMMIT"])
    done.start()
    migrations.upgrade(open_database(f"sqlite:///{tmp_path / 'new.db'}"))
    done.join()
    maker.close()


def test_an_up_to_date_database_that_cannot_be_written_is_opened(engine, tmp_path):
    migrations.upgrade(engine)
    read_only = create_engine(f"sqlite:///file:{tmp_path / 'facts.db'}?mode=ro&uri=true")
    migrations.upgrade(read_only)
    assert migrations.revision(read_only) == migrations.revision(engine)


def test_a_folder_with_a_percent_sign_is_an_ordinary_folder(tmp_path):
    folder = tmp_path / "100%(home)s"
    folder.mkdir()
    engine = open_database(f"sqlite:///{folder / 'facts.db'}")
    migrations.upgrade(engine)
    assert migrations.revision(engine) is not None


def test_a_missing_folder_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match=r"none/facts\.db.*folder exists"):
        migrations.upgrade(create_engine(f"sqlite:///{tmp_path / 'none' / 'facts.db'}"))


def test_a_lock_that_is_never_released_is_a_store_error(engine, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 0.1)
    with FileLock(f"{engine.url.database}.migrate.lock"), pytest.raises(StoreError, match="another process"):
        migrations.upgrade(engine)
