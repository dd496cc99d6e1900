"""Alembic's entry point; ``migrations.upgrade`` hands the connection in."""

from __future__ import annotations

from alembic import context

from inferscale_memory.db import Base, open_database
from inferscale_memory.migrations import import_tables

import_tables()

connection = context.config.attributes.get("connection")
if connection is None:
    # The alembic command, for whoever writes a new revision: alembic -x url=sqlite:///facts.db ...
    connection = open_database(context.get_x_argument(as_dictionary=True)["url"]).connect()

context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
