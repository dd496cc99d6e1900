"""All tables of the first version."""

from __future__ import annotations

from alembic import op

from inferscale_memory.db import Base
from inferscale_memory.migrations import import_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # From the models as they are when it runs: what later revisions add may be there already, so they look first.
    import_tables()
    Base.metadata.create_all(op.get_bind())


def downgrade() -> None:
    raise NotImplementedError("there is nothing before the first version; delete the database instead")
