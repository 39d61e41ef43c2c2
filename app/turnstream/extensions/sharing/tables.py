"""The tables of links to chats and of members of chats."""

from sqlalchemy import Boolean, CheckConstraint, Column, DateTime, ForeignKey, Index, LargeBinary, Table, Text, Uuid

from turnstream.storage.ownership import owned
from turnstream.storage.tables import created_at, metadata

# A link that shows a chat to people without a credential: up to the turn `turn_id`, or, if it is `live`, the newest
# branch. `digest` is of its secret. `results` and `files`: calls of tools with their results, and files, are shown.
shares = Table(
    "shares",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE")),
    Column("digest", LargeBinary, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("results", Boolean, nullable=False),
    Column("files", Boolean, nullable=False),
    created_at(),
    Column("expires_at", DateTime(timezone=True)),
    CheckConstraint("live = (turn_id IS NULL)", name="end"),
    Index(None, "digest", unique=True),
    Index(None, "chat_id"),
    Index(None, "turn_id"),
    info=owned("chat_id", "state"),
)

# The people whom the owner of a chat lets read it, write in it, or decide about its calls (`role`; each role has the
# rights of those before it). `member` is the name of an owner. `plan` is that of the credential that added the member.
chat_members = Table(
    "chat_members",
    metadata,
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
    Column("member", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("plan", Text),
    Column("created_by", Text, nullable=False),
    created_at(),
    CheckConstraint("role IN ('read', 'write', 'approve')", name="role"),
    Index(None, "member"),
    info=owned("chat_id", "state"),
)
