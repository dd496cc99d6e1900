"""The relational database under facts, handles and the encoding ledger: engine, sessions and schema."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import URL, Connection, DateTime, Engine, create_engine, event
from sqlalchemy.engine import Dialect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from inferscale_memory.errors import ConfigError

BUSY_SECONDS = 30.0
"""How long a process waits for another one's lock on a SQLite file."""


_DURABLE = "FULL"
"""SQLite's ``synchronous``: a commit returns once it is on the disk."""


class Base(DeclarativeBase):
    """Declarative base of every table of the library."""


class UtcDateTime(TypeDecorator[datetime]):
    """Timezone-aware UTC times on every database (SQLite keeps none)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store as naive UTC where the database has no zones."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}; give it a time zone, such as datetime.now(UTC).")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Hand out aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def open_database(url: str | URL) -> Engine:
    """Open ``url`` with this library's settings; does not create tables (see ``migrations.upgrade``).

    SQLite gets WAL mode, foreign keys, secure_delete (freed pages are zeroed: deleted text does not stay on disk) and
    a 30 s busy timeout, so that several processes can share one file.

    Args:
        url: any SQLAlchemy URL.

    Raises:
        ConfigError: it is none, or its database driver is not installed.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:  # the URL may hold a password: it is not shown
        raise ConfigError(
            "the database URL cannot be read; give one such as sqlite:////folder/facts.db or "
            "postgresql+psycopg://user@host/name."
        ) from error
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parsed.get_backend_name() == "sqlite":
        options = {"connect_args": {"timeout": BUSY_SECONDS}}
    try:
        engine = create_engine(parsed, **options)
    except (ArgumentError, ImportError) as error:
        raise ConfigError(
            f"databases of the kind {parsed.drivername!r} cannot be opened: {error}. Install the driver that "
            "SQLAlchemy names for it."
        ) from error
    if parsed.get_backend_name() == "sqlite":

        @event.listens_for(engine, "connect")
        def _pragmas(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            _use_wal(cursor)
            for pragma in (f"synchronous={_DURABLE}", "foreign_keys=ON", "secure_delete=ON"):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

    return engine


@contextmanager
def relaxed(engine: Engine) -> Iterator[Connection]:
    """A connection whose commits do not wait for the disk; for what can be made again.

    On SQLite they are seen by every process at once and survive the end of this one; a power cut may lose the last of
    them, and nothing else: the next ordinary commit syncs them too. Elsewhere it is an ordinary connection.
    """
    with engine.connect() as connection:
        if engine.dialect.name != "sqlite":
            yield connection
            return
        connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        try:
            yield connection
        finally:
            try:
                connection.rollback()  # SQLite refuses the pragma inside a transaction
                connection.exec_driver_sql(f"PRAGMA synchronous={_DURABLE}")
            except BaseException:
                connection.invalidate()  # it must not go back to the pool: facts are saved by its commits
                raise


def _use_wal(cursor: Any) -> None:
    """Turn on the write-ahead log, waiting for another process that is just making the file: SQLite itself does not."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
