"""Transactions of the fact store. Writers are serialised, so sequence numbers become visible in their own order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from inferscale_memory.errors import StoreError
from inferscale_memory.facts.failures import describe, store_failures
from inferscale_memory.facts.tables import ClockRow

_SCRUB = "inferscale_scrub"
_READERS_WAIT_MS = 1000
_UNSYNCED = {"synchronize_session": False}
_log = logging.getLogger(__name__)


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
            try:
                self.scrub()
            except StoreError as error:
                # The delete itself is committed; what is left to wipe is noted in the database.
                _log.warning("deleted text is not yet wiped: %s", error)

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
        """Wipe deleted text from SQLite's file and its log; returns whether nothing is left to wipe.

        ``secure_delete`` zeroes freed cells, but not the copies that stay in a page's unused space when its rows
        moved to another page, and the write-ahead log keeps old pages until it is emptied. So the file is rebuilt
        (``VACUUM``: some 25 ms per MB) and the log truncated. What is due is kept in the database: a process that
        dies before this, a full disk or a reader in the way only put it off to the next call.
        """
        if not self._sqlite or self.engine.url.database in (None, "", ":memory:"):
            return True
        if getattr(self._mine, "writing", False):
            raise StoreError("scrub was called inside a transaction of this thread; call it after the block.")
        with self._writers, store_failures(self.engine), self.engine.connect() as connection:
            erased, scrubbed = connection.execute(select(ClockRow.erased, ClockRow.scrubbed)).one()
            connection.commit()
            if erased <= scrubbed:
                return True
            try:
                done = _rebuild(connection.execution_options(isolation_level="AUTOCOMMIT"))
            except OperationalError as error:
                _log.warning("deleted text is not yet wiped from %s: %s", self.engine.url.database, error.orig)
                return False
            if done:
                connection.execute(update(ClockRow).where(ClockRow.scrubbed < erased).values(scrubbed=erased))
        return done

    def _lock(self, session: Session) -> None:
        if self._sqlite:
            self._begin(session, "BEGIN IMMEDIATE")
        else:
            session.execute(update(ClockRow).values(value=ClockRow.value), execution_options=_UNSYNCED)

    def _begin(self, session: Session, statement: str) -> None:
        if self._sqlite:
            connection = session.connection()
            # The engine may be configured elsewhere to begin by itself; a second BEGIN would be an error.
            if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
                connection.exec_driver_sql(statement)


def _rebuild(connection: Connection) -> bool:
    connection.exec_driver_sql("VACUUM")
    patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    connection.exec_driver_sql(f"PRAGMA busy_timeout={_READERS_WAIT_MS}")
    try:
        busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience}")
    return not busy


def scrub_after_commit(session: Session) -> None:
    """Note that text was deleted in ``session``: its transaction ends with ``Transactions.scrub``."""
    session.info[_SCRUB] = True
    number = next(take_numbers(session, 1))
    session.execute(update(ClockRow).values(erased=number), execution_options=_UNSYNCED)


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
