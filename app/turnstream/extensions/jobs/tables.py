"""The table of jobs that are stopped elsewhere."""

from sqlalchemy import JSON, Column, DateTime, Integer, Table, Text, Uuid, func, text

from turnstream.storage.ownership import owned
from turnstream.storage.tables import created_at, metadata

# Jobs that were stopped, or deleted, while they continued elsewhere: until their tools have stopped the work. The turn
# may be gone.
stopped_jobs = Table(
    "stopped_jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False, index=True),
    Column("turn_id", Uuid, nullable=False),
    Column("round", Integer, nullable=False),
    Column("tool_use_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("handle", JSON, nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("due_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
    created_at(),
    info=owned("owner", closed=True),
)
