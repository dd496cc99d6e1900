"""Items: JSON documents under namespaces, and the facts that their texts are."""

from __future__ import annotations

from alembic import op

from inferscale_memory.items.tables import ItemFactRow, ItemRow

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Revision 0001 makes a new database from the models as they are now, so these tables may be there already.
    for model in (ItemRow, ItemFactRow):
        model.__table__.create(op.get_bind(), checkfirst=True)  # type: ignore[attr-defined]


def downgrade() -> None:
    for model in (ItemFactRow, ItemRow):
        model.__table__.drop(op.get_bind(), checkfirst=True)  # type: ignore[attr-defined]
