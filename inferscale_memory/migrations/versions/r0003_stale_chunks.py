"""Chunks that are served but to be encoded again, and the facts of which others have been told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from inferscale_memory.encoding.tables import AnnouncementRow

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Revision 0001 makes a new database from the models as they are now, so all of this may be there already.
    _add("chunks", sa.Column("stale", sa.Boolean, nullable=False, server_default=sa.false()))
    _add("chunks", sa.Column("reach", sa.Float, nullable=True))
    _add("chunk_context", sa.Column("kept", sa.Boolean, nullable=False, server_default=sa.true()))
    op.create_index("ix_chunks_stale", "chunks", ["stale"], if_not_exists=True)
    AnnouncementRow.__table__.create(op.get_bind(), checkfirst=True)  # type: ignore[attr-defined]


def downgrade() -> None:
    AnnouncementRow.__table__.drop(op.get_bind(), checkfirst=True)  # type: ignore[attr-defined]
    op.drop_index("ix_chunks_stale", "chunks", if_exists=True)
    for table, column in (("chunk_context", "kept"), ("chunks", "reach"), ("chunks", "stale")):
        op.drop_column(table, column)


def _add(table: str, column: sa.Column) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
