"""Tables of the fact store, as typed models. The values handed out are in ``models``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from inferscale_memory.db import Base, UtcDateTime
from inferscale_memory.scope import MAX_ID_CHARS, Scope

DIGEST_CHARS = 64
ID_CHARS = 32
ROLE_CHARS = 64
# MySQL's TEXT ends at 64 KiB, and its default collation takes "A" for "a": neither will do for facts and scope ids.
LONG_TEXT = Text().with_variant(mysql.LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")
EXACT_ID = String(MAX_ID_CHARS).with_variant(
    mysql.VARCHAR(MAX_ID_CHARS, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)


class JsonText(TypeDecorator[dict[str, Any]]):
    """A JSON object as text. Characters outside ASCII stay readable, so that they can be searched for."""

    impl = LONG_TEXT
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: Dialect) -> str | None:
        """Write compact JSON."""
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, Any] | None:
        """Read it back."""
        return None if value is None else json.loads(value)


class ScopeColumns:
    """Who owns a row. ``principal`` is matched exactly; agent and session narrow."""

    tenant: Mapped[str] = mapped_column(EXACT_ID)
    user_id: Mapped[str | None] = mapped_column(EXACT_ID)
    agent_id: Mapped[str | None] = mapped_column(EXACT_ID)
    session_id: Mapped[str | None] = mapped_column(EXACT_ID)
    principal: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    scope_key: Mapped[str] = mapped_column(String(DIGEST_CHARS))

    @property
    def scope(self) -> Scope:
        """The scope as a value."""
        return Scope(tenant=self.tenant, user=self.user_id, agent=self.agent_id, session=self.session_id)


class FactRow(ScopeColumns, Base):
    """A fact. ``text_key`` is the digest of its scope and normalised text: one statement is one row."""

    __tablename__ = "facts"
    __table_args__ = (
        UniqueConstraint("scope_key", "text_key", name="uq_facts_scope_text"),
        Index("ix_facts_principal_seq", "principal", "seq"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, unique=True)
    text: Mapped[str] = mapped_column(LONG_TEXT)
    text_key: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    speaker: Mapped[str | None] = mapped_column(EXACT_ID)
    revision: Mapped[int]
    # ``metadata`` is a reserved attribute of declarative classes.
    meta: Mapped[dict[str, Any]] = mapped_column("metadata", JsonText)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TurnRow(ScopeColumns, Base):
    """A message. ``text`` is emptied when a fact that came from it is deleted."""

    __tablename__ = "turns"
    __table_args__ = (Index("ix_turns_principal_seq", "principal", "seq"),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    external_id: Mapped[str] = mapped_column(EXACT_ID)
    seq: Mapped[int] = mapped_column(BigInteger, unique=True)
    role: Mapped[str] = mapped_column(String(ROLE_CHARS))
    speaker: Mapped[str | None] = mapped_column(EXACT_ID)
    text: Mapped[str] = mapped_column(LONG_TEXT)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SourceRow(Base):
    """Which turns a fact came from."""

    __tablename__ = "fact_sources"

    fact_id: Mapped[str] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"), primary_key=True)
    turn_id: Mapped[str] = mapped_column(ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True, index=True)
    seq: Mapped[int] = mapped_column(BigInteger)


class RevisionRow(Base):
    """One line of a fact's history."""

    __tablename__ = "fact_revisions"

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    fact_id: Mapped[str] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"), index=True)
    revision: Mapped[int]
    text: Mapped[str] = mapped_column(LONG_TEXT)
    meta: Mapped[dict[str, Any]] = mapped_column("metadata", JsonText)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    kind: Mapped[str] = mapped_column(String(16))


class IdempotencyRow(Base):
    """A save that was done: the same key again gives the same fact, whatever became of its text since."""

    __tablename__ = "fact_idempotency"

    key: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    fact_id: Mapped[str] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"), index=True)
    text_key: Mapped[str] = mapped_column(String(DIGEST_CHARS))


class VectorRow(Base):
    """A fact's embedding, float32 little-endian bytes."""

    __tablename__ = "fact_vectors"

    embedder_id: Mapped[str] = mapped_column(EXACT_ID, primary_key=True)
    fact_id: Mapped[str] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"), primary_key=True, index=True)
    revision: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ChangeRow(Base):
    """The append-only change log. It holds no text and outlives its facts."""

    __tablename__ = "fact_changes"

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    fact_id: Mapped[str] = mapped_column(String(ID_CHARS))
    principal: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    kind: Mapped[str] = mapped_column(String(16))


class EpochRow(Base):
    """The KV epoch of a principal; part of the salt, so raising it loses every native block made before."""

    __tablename__ = "principal_epochs"

    principal: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)


class ClockRow(Base):
    """One row, one counter: every sequence number of the store comes from it, in the order of commits.

    ``erased`` is the counter at the last delete, ``scrubbed`` at the last one whose traces were wiped from the file.
    """

    __tablename__ = "store_clock"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)
    erased: Mapped[int] = mapped_column(BigInteger)
    scrubbed: Mapped[int] = mapped_column(BigInteger)


@event.listens_for(ClockRow.__table__, "after_create")
def _start_clock(table: Table, connection: Connection, **_: Any) -> None:
    connection.execute(table.insert().values(id=1, value=0, erased=0, scrubbed=0))
