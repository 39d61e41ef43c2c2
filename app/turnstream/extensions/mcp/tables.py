"""The table of sign-ins at MCP servers."""

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from turnstream.storage.ownership import owned
from turnstream.storage.tables import metadata

# Sign-ins of owners to MCP servers, those that have begun, and servers of owners. `tokens` and `pending` are sealed.
# `version` counts the tokens of a row: the replica that refreshes them holds the row for a while. `tools` are digests
# of the tools of the server that the owner has accepted.
sign_ins = Table(
    "sign_ins",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("issuer", Text),
    Column("scopes", ARRAY(Text)),
    Column("tokens", Text),
    Column("expires_at", DateTime(timezone=True)),
    Column("version", Integer, nullable=False, server_default=text("0")),
    Column("signed_in_at", DateTime(timezone=True)),
    Column("refreshed_at", DateTime(timezone=True)),
    Column("refreshing_until", DateTime(timezone=True)),
    # SHA-256 of the `state` of the request to the issuer.
    Column("state", LargeBinary),
    Column("pending", Text),
    Column("pending_until", DateTime(timezone=True)),
    Column("tools", JSON),
    CheckConstraint("(tokens IS NULL) = (signed_in_at IS NULL)", name="tokens_have_time"),
    CheckConstraint("num_nulls(state, pending, pending_until) IN (0, 3)", name="pending"),
    Index("ix_sign_ins_state", "state", unique=True, postgresql_where=literal_column("state IS NOT NULL")),
    info=owned("owner", "state"),
)
