"""The schema of the library's database and its changes (Alembic), run from code when a database is opened.

A change of the tables is a new file in ``versions``; ``alembic -c`` is not needed by users.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine

from inferscale_memory.errors import StoreError
from inferscale_memory.facts.failures import describe, store_failures

TABLE_MODULES = (
    "inferscale_memory.facts.tables",
    "inferscale_memory.handles",
    "inferscale_memory.encoding.ledger",
    "inferscale_memory.items.tables",
)
"""Modules that define tables of ``db.Base``; imported before the schema is made, so that no table is forgotten."""

_LOCK_SECONDS = 60.0


def import_tables() -> None:
    """Make every table known to ``Base.metadata``."""
    for module in TABLE_MODULES:
        importlib.import_module(module)


def upgrade(engine: Engine) -> None:
    """Bring the database to this version's schema; does nothing where it is. Safe to call from many processes.

    A SQLite file is locked by ``FILE.migrate.lock`` meanwhile; a database already up to date is only read.

    Raises:
        StoreError: the database was written by a newer version, cannot be written, or stays locked for a minute.
    """
    with store_failures(engine):
        if _is_current(engine):
            return
        with _one_process(engine), engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                # Python's driver would run each DDL statement by itself; a crash half way must leave nothing.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            if not _connection_is_current(connection, engine):
                command.upgrade(_config(connection), "head")


def revision(engine: Engine) -> str | None:
    """The schema revision that the database is at; None for an empty one."""
    with store_failures(engine), engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _is_current(engine: Engine) -> bool:
    with engine.connect() as connection:
        return _connection_is_current(connection, engine)


def _connection_is_current(connection: Connection, engine: Engine) -> bool:
    scripts = ScriptDirectory.from_config(_config(connection))
    known = {script.revision for script in scripts.walk_revisions()}
    heads = MigrationContext.configure(connection).get_current_heads()
    for found in heads:
        if found not in known:
            raise StoreError(
                f"database {describe(engine)} has schema revision {found!r}; this version knows up to "
                f"{scripts.get_current_head()!r}. It was written by a newer inferscale-memory: upgrade the package."
            )
    return set(heads) == set(scripts.get_heads())


def _config(connection: Connection) -> Config:
    config = Config()
    # Config files take "%" as the start of a substitution.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def _one_process(engine: Engine) -> Iterator[None]:
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    if not file or file == ":memory:" or file.startswith("file:"):
        yield
        return
    try:
        with FileLock(f"{file}.migrate.lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout as error:
        raise StoreError(
            f"database {file}: another process has been changing its schema for {_LOCK_SECONDS:.0f} s. "
            f"Wait for it, or remove {file}.migrate.lock if no such process exists."
        ) from error
    except OSError as error:
        raise StoreError(
            f"database {file}: its folder cannot be written ({error.strerror}). Make it writable or give another path."
        ) from error
