"""The cache of results."""

from sqlalchemy import JSON, CheckConstraint, Column, DateTime, Index, Integer, LargeBinary, Table, Text, func

from turnstream.storage.ownership import owned
from turnstream.storage.tables import metadata

# Answers of read-only tools that declare how long they hold. `key` is a SHA-256 of tool and input.
tool_cache = Table(
    "tool_cache",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("tool", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("client_data", JSON),
    Column("size", Integer, nullable=False),
    Column("stored_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("octet_length(key) = 32", name="key_is_sha256"),
    Index(None, "expires_at"),
    info=owned("owner"),
)
