"""What is stored of a handle, and the value that it is read as."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import JSON, Integer, String, bindparam, select
from sqlalchemy.orm import Mapped, mapped_column

from inferscale_memory.db import Base, UtcDateTime
from inferscale_memory.scope import Scope

FORGOTTEN: list[str | int] = ["", 0, 0]
"""Stands in a record where a deleted fact stood, so that a handle can say how many it has lost, not which."""


class HandleRow(Base):
    """The fact list behind a handle. Holds ids only, never text."""

    __tablename__ = "handles"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    principal: Mapped[str] = mapped_column(String(64), index=True)
    tenant: Mapped[str] = mapped_column(String(256))
    user_id: Mapped[str | None] = mapped_column(String(256))
    agent_id: Mapped[str | None] = mapped_column(String(256))
    session_id: Mapped[str | None] = mapped_column(String(256))
    list_digest: Mapped[str] = mapped_column(String(64))
    facts: Mapped[list[list[str | int]]] = mapped_column(JSON)
    refresh: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


RECORD = select(HandleRow.__table__).where(HandleRow.__table__.c.digest == bindparam("key"))
EXPIRY = select(HandleRow.__table__.c.expires_at).where(HandleRow.__table__.c.digest == bindparam("key"))


@dataclass(frozen=True)
class HandleRecord:
    """What a handle stands for.

    ``facts`` are (fact id, revision) in prompt order, without the ``forgotten`` ones deleted since; the revision is the
    one at minting, and a caller resolves an updated fact to its newest. ``ranks`` are theirs, the least for the most
    relevant. ``refresh`` is how many of the last ``facts`` are prefilled as text, never more than there are.
    ``expires_at`` is the end of the opened handle.
    """

    digest: str
    scope: Scope
    facts: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]
    refresh: int
    created_at: datetime
    expires_at: datetime
    forgotten: int = 0
