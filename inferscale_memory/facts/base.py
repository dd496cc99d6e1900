"""What every part of the store stands on: one engine, and transactions that are its own or the caller's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from inferscale_memory.errors import StoreError
from inferscale_memory.facts.failures import describe
from inferscale_memory.facts.session import Transactions

_ATTEMPTS = 5
T = TypeVar("T")


class StoreBase:
    """Opens transactions; subclasses add the tables' methods."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._transactions = Transactions(engine)

    def transaction(self) -> AbstractContextManager[Session]:
        """A write transaction for several calls: committed at the end of the block, rolled back on an exception.

        It holds the store's only write lock from its start, so keep the block short, and pass the session on:
        ``with store.transaction() as tx: store.add(..., tx=tx)``. Other tables of the database may be written in it.
        """
        return self._transactions.write()

    def scrub(self) -> bool:
        """Wipe deleted text from SQLite's file and log (see ``Transactions.scrub``); returns whether all is wiped.

        Done after every delete. Call it on opening too: it is quick where nothing is due.
        """
        return self._transactions.scrub()

    def _read(self, tx: Session | None) -> AbstractContextManager[Session]:
        return self._transactions.read(tx)

    def _write(self, work: Callable[[Session], T], tx: Session | None) -> T:
        """Run ``work`` in ``tx``, or in a transaction of its own, again where another writer got in between."""
        if tx is not None:
            with self._transactions.write(tx) as session:
                return work(session)
        for _ in range(_ATTEMPTS):
            try:
                with self._transactions.write() as session:
                    return work(session)
            except IntegrityError as error:
                clash = error
        raise StoreError(
            f"fact store {describe(self.engine)}: {_ATTEMPTS} attempts clashed with other writers ({clash.orig}). "
            "Try again; if it stays, the schema is damaged."
        ) from clash
