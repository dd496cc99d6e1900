"""Minting and opening handles: what is signed, what is stored, and when a handle is refused."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from inferscale_memory.db import relaxed
from inferscale_memory.errors import HandleError, InvalidInputError, StoreError
from inferscale_memory.handles.records import EXPIRY, FORGOTTEN, RECORD, HandleRecord, HandleRow
from inferscale_memory.handles.ring import SecretRing
from inferscale_memory.handles.text import CLOSING, HANDLE, OPENING, decode_letters, encode_letters
from inferscale_memory.scope import Scope, digest, length_prefixed

DEFAULT_TTL = timedelta(days=1)
PURGE_SECONDS = 3600.0

_VERSION = 1
_LABEL = "inferscale handle v1"
_EXPIRY_BYTES, _DIGEST_BYTES, _MAC_BYTES = 5, 32, 16
_BODY_BYTES = 1 + _EXPIRY_BYTES + _DIGEST_BYTES
_REFUSED = (
    "this KV handle resolves to nothing here: it is damaged, expired, unknown, or of another scope. "
    "Ask for a new one with Memory.recall()."
)


class HandleBook:
    """Mints handles into the database and opens them, in any process that shares database and secret.

    A handle carries version, expiry, the digest of its record and a MAC over the three. The digest covers tenant,
    scope, fact list and refresh, so the MAC signs all of them, and a forged handle is refused before the database is
    asked. There is no nonce: the same facts in the same scope give the same handle until its time bucket ends.
    """

    def __init__(self, engine: Engine, secrets: SecretRing, ttl: timedelta = DEFAULT_TTL) -> None:
        """Open the book.

        Args:
            engine: the library's database; the table ``handles`` exists (see ``migrations.upgrade``).
            secrets: what signs and verifies.
            ttl: shortest life of a handle, at least one second. The longest is twice that.

        Raises:
            InvalidInputError: ``ttl`` is shorter than a second.
        """
        if ttl < timedelta(seconds=1):
            raise InvalidInputError(f"a handle's ttl is {ttl}, at least one second is needed; the default is one day.")
        self._engine = engine
        self._secrets = secrets
        self._bucket = -int(-ttl.total_seconds() // 1)  # whole seconds, rounded up
        self._next_purge = time.monotonic() + PURGE_SECONDS

    def mint(
        self,
        scope: Scope,
        facts: Sequence[tuple[str, int]],
        refresh: int = 0,
        *,
        ranks: Sequence[int] | None = None,
        now: datetime | None = None,
    ) -> str:
        """Make the handle of an ordered fact list.

        Args:
            scope: the scope it is bound to.
            facts: (fact id, revision) in prompt order; may be empty.
            refresh: how many of the last facts are prefilled as text.
            ranks: of each fact, 0 for the most relevant; None: the last one is.
            now: the time of minting, for tests.

        Returns:
            ``⟦kv:LETTERS⟧``. It changes when an id, a revision, the order, a rank, the scope or ``refresh`` changes.

        Raises:
            InvalidInputError: ``refresh`` is negative, a fact is listed twice, or there is not one rank for each.
            StoreError: the record cannot be written.
        """
        if refresh < 0:
            raise InvalidInputError(f"refresh is {refresh}; give the number of facts to prefill as text, 0 or more.")
        if len({fact_id for fact_id, _ in facts}) != len(facts):
            raise InvalidInputError(f"a handle's {len(facts)} facts name one fact twice; give each fact once.")
        by_place = list(reversed(range(len(facts))))
        order = by_place if ranks is None else list(ranks)
        if sorted(order) != sorted(by_place):
            raise InvalidInputError(f"the ranks of {len(facts)} facts are {order}; give each of 0 to n - 1 once.")
        now = now or datetime.now(UTC)
        # Living to the end of the *next* bucket, a handle minted in the last second of this one still lives for ttl.
        expiry = (int(now.timestamp()) // self._bucket + 2) * self._bucket
        entries = [[fact_id, revision, rank] for (fact_id, revision), rank in zip(facts, order, strict=True)]
        listed = digest("ranked facts", *(str(part) for entry in entries for part in entry))
        key = _record_digest(scope, listed, refresh)
        row = {
            "digest": key,
            "principal": scope.principal,
            "tenant": scope.tenant,
            "user_id": scope.user,
            "agent_id": scope.agent,
            "session_id": scope.session,
            "list_digest": listed,
            "facts": entries,
            "refresh": refresh,
            "created_at": now,
            "expires_at": datetime.fromtimestamp(expiry, UTC),
        }
        body = bytes([_VERSION]) + expiry.to_bytes(_EXPIRY_BYTES, "big") + bytes.fromhex(key)
        self._save(row)
        if time.monotonic() >= self._next_purge:
            self._next_purge = time.monotonic() + PURGE_SECONDS
            with suppress(StoreError):  # the handle is minted; what has expired is removed the next time
                self.purge_expired()
        return OPENING + encode_letters(body + _mac(self._secrets.current(), body)) + CLOSING

    def open(self, token: str, scope: Scope | None = None, now: datetime | None = None) -> HandleRecord:
        """Verify a handle and read its record.

        Args:
            token: the handle as it stood in the text.
            scope: the caller's; handles are accepted whose scope it covers, as facts are in a search. ``None`` accepts
                the scope that the handle is signed for.
            now: the time of the check, for tests.

        Raises:
            HandleError: with one message for every cause, since the difference would tell an outsider what exists;
                ``reason`` (``malformed``, ``forged``, ``expired``, ``unknown``, ``foreign``) is for logs and metrics.
            StoreError: the database cannot be read.
        """
        now = now or datetime.now(UTC)
        body = self._verified_body(token, now)
        expires_at = datetime.fromtimestamp(int.from_bytes(body[1 : 1 + _EXPIRY_BYTES], "big"), UTC)
        if now >= expires_at:
            raise HandleError(_REFUSED, "expired")
        key = body[1 + _EXPIRY_BYTES :].hex()
        with _store("read"), self._engine.connect() as connection:
            row = connection.execute(RECORD, {"key": key}).one_or_none()
        if row is None:
            raise HandleError(_REFUSED, "unknown")
        owner = Scope(tenant=row.tenant, user=row.user_id, agent=row.agent_id, session=row.session_id)
        if not hmac.compare_digest(_record_digest(owner, row.list_digest, row.refresh), row.digest):
            raise HandleError(_REFUSED, "forged")  # the row was changed to another scope
        if scope is not None and not scope.covers(owner):
            raise HandleError(_REFUSED, "foreign")
        left = [entry for entry in row.facts if entry[0]]
        facts = tuple((str(entry[0]), int(entry[1])) for entry in left)
        # Records of earlier versions hold no ranks: the last fact is the best.
        ranks = tuple(int(entry[2]) if len(entry) > 2 else len(left) - 1 - at for at, entry in enumerate(left))
        refresh, forgotten = min(row.refresh, len(facts)), len(row.facts) - len(facts)
        return HandleRecord(row.digest, owner, facts, ranks, refresh, row.created_at, expires_at, forgotten)

    def purge_expired(self, now: datetime | None = None) -> int:
        """Remove the records that no living handle names; returns how many."""
        over = HandleRow.expires_at <= (now or datetime.now(UTC))
        with _store("written"), Session(self._engine) as session:
            # A look first: it needs no write lock, and as a rule there is nothing to remove.
            found = session.scalar(select(HandleRow.digest).where(over).limit(1))
            session.commit()
            if found is None:
                return 0
            gone = session.execute(delete(HandleRow).where(over))
            session.commit()
            return _rows(gone)

    def forget_facts(self, ids: Collection[str], tx: Session | None = None, *, scope: Scope | None = None) -> int:
        """Take deleted facts out of every record; handles keep resolving to the facts that are left.

        Args:
            ids: fact ids.
            tx: an open transaction to join; without it the change is committed here.
            scope: the owner of the facts, which spares reading the other owners' records.

        Returns:
            How many records changed.
        """
        if tx is None:
            with _store("written"), Session(self._engine) as session, session.begin():
                return self.forget_facts(ids, session, scope=scope)
        wanted = frozenset(ids)
        query = select(HandleRow) if scope is None else select(HandleRow).where(HandleRow.principal == scope.principal)
        changed = 0
        for row in tx.scalars(query.execution_options(yield_per=500)):
            if any(fact[0] in wanted for fact in row.facts):
                row.facts = [FORGOTTEN if fact[0] in wanted else fact for fact in row.facts]
                changed += 1
        return changed

    def _verified_body(self, token: str, now: datetime) -> bytes:
        letters = token[len(OPENING) : -len(CLOSING)] if HANDLE.fullmatch(token) else ""
        payload = decode_letters(letters, _BODY_BYTES + _MAC_BYTES)
        if payload is None or payload[0] != _VERSION:
            raise HandleError(_REFUSED, "malformed")
        body, mac = payload[:_BODY_BYTES], payload[_BODY_BYTES:]
        # Every secret is tried, so that the time taken does not tell which one matched.
        if not sum(hmac.compare_digest(mac, _mac(secret, body)) for secret in self._secrets.accepted(now)):
            raise HandleError(_REFUSED, "forged")
        return body

    def _save(self, row: Mapping[str, Any]) -> None:
        """Insert the record, or lengthen the life of the one that is there; asking again writes nothing.

        The commit does not wait for the disk, which a question would have to wait for: a handle that a power cut
        takes is asked for again.
        """
        wanted, key = row["expires_at"], row["digest"]
        with _store("written"), relaxed(self._engine) as connection:
            if self._lives_until(connection, key, wanted):
                return
            try:
                connection.execute(insert(HandleRow), row)
                connection.commit()
            except IntegrityError:  # another process was first
                connection.rollback()
                if not self._lives_until(connection, key, wanted):
                    raise

    @staticmethod
    def _lives_until(connection: Connection, key: str, wanted: datetime) -> bool:
        found = connection.scalar(EXPIRY, {"key": key})
        connection.commit()  # SQLite cannot turn an old read transaction into a write
        if found is None:
            return False
        if found < wanted:
            # Only ever later, so that processes with different clocks or ttl do not shorten each other's handles.
            later = (HandleRow.digest == key, HandleRow.expires_at < wanted)
            connection.execute(update(HandleRow).where(*later).values(expires_at=wanted))
            connection.commit()
        return True


def _record_digest(scope: Scope, listed: str, refresh: int) -> str:
    return digest("handle", scope.tenant, scope.user, scope.agent, scope.session, listed, str(refresh))


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, length_prefixed((_LABEL, body)), hashlib.sha256).digest()[:_MAC_BYTES]


def _rows(result: object) -> int:
    assert isinstance(result, CursorResult)
    return int(result.rowcount)


@contextmanager
def _store(done: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        # The driver's own message; SQLAlchemy's adds the statement and its parameters: whose handles, of which facts.
        found = getattr(error, "orig", None) or type(error).__name__
        raise StoreError(
            f"the table of KV handles cannot be {done}: {found}. Check the database's free space, permissions and "
            "schema (inferscale doctor)."
        ) from error
