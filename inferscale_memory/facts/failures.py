"""Database failures as ``StoreError``: which database, what went wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from inferscale_memory.errors import StoreError

# Fragments of SQLite's, PostgreSQL's and MySQL's messages, and what a user can do about each. The first match counts.
_REMEDIES: tuple[tuple[str, str], ...] = (
    ("disk is full", "free some space on that disk; everything committed before is safe"),
    ("disk full", "free some space on that disk; everything committed before is safe"),
    ("readonly database", "make the file and its folder writable, or open a store elsewhere"),
    ("read-only", "make the database writable, or open a store elsewhere"),
    ("unable to open database file", "check that its folder exists and may be written to"),
    ("locked", "another process is holding the store; try again, or end the process that holds it"),
    ("malformed", "the file is damaged; restore it from a backup"),
    ("not a database", "this file was not written by SQLite; give another path"),
    ("disk i/o error", "check the disk and its mount"),
    ("no such table", "the tables are missing; call inferscale_memory.migrations.upgrade(engine) first"),
    ("does not exist", "the tables are missing; call inferscale_memory.migrations.upgrade(engine) first"),
    ("doesn't exist", "the tables are missing; call inferscale_memory.migrations.upgrade(engine) first"),
)
_GENERIC = "check that the database is reachable and try again"


def describe(engine: Engine) -> str:
    """The database in words: the file for SQLite, else the URL without its password."""
    if engine.dialect.name == "sqlite":
        return engine.url.database or ":memory:"
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def store_failures(engine: Engine) -> Iterator[None]:
    """Turn driver errors raised inside into ``StoreError``.

    Broken constraints (``IntegrityError``) pass through: they belong to the caller, who may try again.

    Raises:
        StoreError: the database is full, read-only, locked, damaged, unreachable or without tables.
    """
    try:
        yield
    except IntegrityError:
        raise
    except PoolTimeoutError as error:
        raise StoreError(f"fact store {describe(engine)}: no free connection ({error}). Use fewer threads.") from error
    except DBAPIError as error:
        # Only the driver's own message: SQLAlchemy's adds the statement and its parameters, which hold users' text.
        found = str(error.orig)
        remedy = next((advice for part, advice in _REMEDIES if part in found.lower()), _GENERIC)
        raise StoreError(f"fact store {describe(engine)}: {found}. Remedy: {remedy}.") from error
