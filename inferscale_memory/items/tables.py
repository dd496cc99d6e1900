"""Tables of the items: JSON documents under a namespace and a key, and the facts that their texts are."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.orm import Mapped, mapped_column

from inferscale_memory.db import Base, UtcDateTime
from inferscale_memory.facts.tables import ID_CHARS, LONG_TEXT, JsonText, ScopeColumns

MAX_PATH_CHARS = 512
# Prefixes are asked for as ranges, so paths have to be ordered by code point whatever the database's own language is.
PATH = (
    String(MAX_PATH_CHARS)
    .with_variant(postgresql.VARCHAR(MAX_PATH_CHARS, collation="C"), "postgresql")
    .with_variant(mysql.VARCHAR(MAX_PATH_CHARS, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
)


class ItemRow(ScopeColumns, Base):
    """An item. ``id`` is the digest of tenant, path and key, so that writing one twice is one row."""

    __tablename__ = "items"
    __table_args__ = (
        Index("ix_items_tenant_path", "tenant", "path"),
        Index("ix_items_principal", "principal"),
        Index("ix_items_expires_at", "expires_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, unique=True)
    path: Mapped[str] = mapped_column(PATH)
    """The namespace, see ``namespaces.to_path``."""
    key: Mapped[str] = mapped_column(LONG_TEXT)
    value: Mapped[dict[str, Any]] = mapped_column(JsonText)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ttl: Mapped[float | None]
    """Minutes that it lives after its last use; None: for ever."""
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ItemFactRow(Base):
    """A text of an item that can be searched for: a fact, which several items may share.

    ``made`` says that it was saved for an item's sake, and goes when the last item lets go of it. A fact that was
    there before belongs to whoever saved it and stays.
    """

    __tablename__ = "item_facts"

    item_id: Mapped[str] = mapped_column(ForeignKey("items.id", ondelete="CASCADE"), primary_key=True)
    fact_id: Mapped[str] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"), primary_key=True, index=True)
    made: Mapped[bool]
