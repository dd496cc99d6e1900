"""Transactions of the fact store. Writers are serialised, so sequence numbers become visible in their own order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from inferscale_memory.errors import StoreError
from inferscale_memory.facts.failures import describe, store_failures
from inferscale_memory.facts.tables import ClockRow

_SCRUB = "inferscale_scrub"
_SCRUB_WAIT_MS = 250


class Transactions:
    """Opens read and write sessions on one engine.

    SQLite: a write transaction takes the write lock at once (``BEGIN IMMEDIATE``); a deferred one could read, then
    fail to write because another process wrote in between. Elsewhere it locks the clock row. Either way a reader who
    sees sequence number ``n`` has already seen, or will never see, every smaller one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        # Threads of one process queue here, in order, instead of polling SQLite's file lock against each other.
        self._writers = threading.Lock()
        self._mine = threading.local()

    @contextmanager
    def write(self, tx: Session | None = None) -> Iterator[Session]:
        """A write transaction: committed at the end, rolled back on any exception. ``tx`` is joined, not committed.

        Raises:
            StoreError: the database refuses, or this thread already has a transaction open and did not pass it on.
        """
        if tx is not None:
            with store_failures(self.engine):
                yield tx
            return
        if getattr(self._mine, "writing", False):
            raise StoreError("a transaction is open on this thread; pass it to the store's methods as tx=...")
        with self._writers:
            self._mine.writing = True
            try:
                with store_failures(self.engine), Session(self.engine, expire_on_commit=False) as session:
                    self._lock(session)
                    yield session
                    session.commit()
                    scrub = session.info.get(_SCRUB, False)
            finally:
                self._mine.writing = False
        if scrub:
            self.scrub()

    @contextmanager
    def read(self, tx: Session | None = None) -> Iterator[Session]:
        """A session that sees one state of the database; ``tx`` is joined."""
        with store_failures(self.engine):
            if tx is not None:
                yield tx
                return
            with Session(self.engine) as session:
                self._begin(session, "BEGIN")
                yield session

    def scrub(self) -> bool:
        """Empty SQLite's write-ahead log, where text deleted from the main file may still stand.

        Best effort: with a reader in another process it gives up after a quarter of a second, and the next call or
        SQLite's own checkpoint does it. Returns whether the log is empty now.
        """
        if not self._sqlite:
            return True
        with store_failures(self.engine), self.engine.connect() as connection:
            patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
            connection.exec_driver_sql(f"PRAGMA busy_timeout={_SCRUB_WAIT_MS}")
            try:
                busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={patience}")
        return not busy

    def _lock(self, session: Session) -> None:
        if self._sqlite:
            self._begin(session, "BEGIN IMMEDIATE")
        else:
            session.execute(update(ClockRow).values(value=ClockRow.value), execution_options=_UNSYNCED)

    def _begin(self, session: Session, statement: str) -> None:
        if self._sqlite and not _in_transaction(session):
            session.execute(text(statement))


_UNSYNCED = {"synchronize_session": False}


def _in_transaction(session: Session) -> bool:
    # The engine may be configured elsewhere to begin by itself; a second BEGIN would be an error.
    driver = session.connection().connection.dbapi_connection
    return bool(getattr(driver, "in_transaction", False))


def scrub_after_commit(session: Session) -> None:
    """Ask that the transaction of ``session`` ends with ``Transactions.scrub``."""
    session.info[_SCRUB] = True


def take_numbers(session: Session, count: int) -> Iterator[int]:
    """Take ``count`` consecutive numbers from the store's clock; numbers not used are lost.

    Raises:
        StoreError: the clock is missing, so the tables were not made by ``migrations.upgrade``.
    """
    session.execute(update(ClockRow).values(value=ClockRow.value + count), execution_options=_UNSYNCED)
    last = session.scalar(select(ClockRow.value))
    if last is None:
        where = describe(session.get_bind().engine)
        raise StoreError(f"fact store {where}: its clock is missing. Restore it from a backup.")
    return iter(range(last - count + 1, last + 1))
