"""Tables of the encoding ledger. None of them holds text: only ids, keys and counts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Float, ForeignKey, Index, Integer, String, Text, false, true
from sqlalchemy.orm import Mapped, mapped_column

from inferscale_memory.db import Base, UtcDateTime

KEY = String(64)
"""A chunk key, hex."""
ID = String(255)
"""Ids of facts and turns, and the names of policies, fingerprints and encoders."""

PENDING = "pending"
READY = "ready"


class ChunkRow(Base):
    """A chunk file that exists (``ready``) or may exist (``pending``: its encode was sent)."""

    __tablename__ = "chunks"
    __table_args__ = (
        Index("ix_chunks_fact", "fact_id", "fingerprint", "policy", "state"),
        Index("ix_chunks_state", "state"),
        Index("ix_chunks_stale", "stale"),
    )

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    fact_id: Mapped[str] = mapped_column(ID)
    revision: Mapped[int] = mapped_column(Integer)
    principal: Mapped[str] = mapped_column(String(64), index=True)
    fingerprint: Mapped[str] = mapped_column(ID)
    policy: Mapped[str] = mapped_column(ID)
    n_tokens: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str | None] = mapped_column(ID)
    """Ledger that sent the encode, while the chunk is pending."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    stale: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Served, but another context would be chosen now, or may be: to be encoded again."""
    reach: Mapped[float | None] = mapped_column(Float)
    """How similar to its fact a further fact must be to change the context; None where none does."""


class ChunkContextRow(Base):
    """One fact or turn that was chosen as context of a chunk. Whoever saw it carries traces of it."""

    __tablename__ = "chunk_context"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    chunk_key: Mapped[str] = mapped_column(KEY, ForeignKey("chunks.key", ondelete="CASCADE"), index=True)
    fact_id: Mapped[str | None] = mapped_column(ID, index=True)
    revision: Mapped[int | None] = mapped_column(Integer)
    turn_id: Mapped[str | None] = mapped_column(ID, index=True)
    kept: Mapped[bool] = mapped_column(default=True, server_default=true())
    """False for what did not fit: it left no trace, but once it is gone something else may fit."""


class TombstoneRow(Base):
    """A chunk whose file must be deleted on every tier; the row goes only after the file."""

    __tablename__ = "chunk_tombstones"

    key: Mapped[str] = mapped_column(KEY, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    owner: Mapped[str | None] = mapped_column(ID)
    """Ledger whose encode of this key was in flight: its file may still be written, so the row stays until then."""
    claimed_by: Mapped[str | None] = mapped_column(ID)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class EncodeFailureRow(Base):
    """Failed attempts at one revision of a fact; ``parked`` once they are used up."""

    __tablename__ = "encode_failures"

    fact_id: Mapped[str] = mapped_column(ID, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(ID, primary_key=True)
    policy: Mapped[str] = mapped_column(ID, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer)
    attempts: Mapped[int] = mapped_column(Integer)
    parked: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class AnnouncementRow(Base):
    """A fact of which the older facts' chunks have been told, for policies that depend on facts saved later."""

    __tablename__ = "encode_announcements"

    fact_id: Mapped[str] = mapped_column(ID, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(ID, primary_key=True)
    policy: Mapped[str] = mapped_column(ID, primary_key=True)
    revision: Mapped[int] = mapped_column(Integer)
    embedded: Mapped[bool]
    """False while it has no vector: it reaches nobody, and is announced again once it has one."""


class EncodeLeaseRow(Base):
    """A process that encodes, alive as long as it renews this row."""

    __tablename__ = "encode_leases"

    owner: Mapped[str] = mapped_column(ID, primary_key=True)
    renewed_at: Mapped[datetime] = mapped_column(UtcDateTime)
