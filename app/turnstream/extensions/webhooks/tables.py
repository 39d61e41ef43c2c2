"""The queues of webhooks."""

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    literal_column,
    text,
)

from turnstream.storage.ownership import owned
from turnstream.storage.tables import created_at, metadata

# The end of a turn, for delivery to an operator's server. A trigger inserts the row (`keep_webhook`), so that no
# statement that ends a turn can forget it. It is due until it is delivered or given up. `answer` is the receiver's last
# response.
webhooks = Table(
    "webhooks",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("due_at", DateTime(timezone=True), server_default=func.now()),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("answer", Text),
    Column("delivered_at", DateTime(timezone=True)),
    Column("given_up_at", DateTime(timezone=True)),
    CheckConstraint("num_nonnulls(due_at, delivered_at, given_up_at) = 1", name="one_state"),
    Index("ix_webhooks_due", "due_at", postgresql_where=literal_column("due_at IS NOT NULL")),
    info=owned("turn_id", "state"),
)

# The same for turns that begin to wait for a person. `asked` is that of the turn, which may wait several times. `calls`
# are those that waited then.
waiting_webhooks = Table(
    "waiting_webhooks",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("asked", Integer, primary_key=True),
    Column("calls", JSON, nullable=False),
    created_at(),
    Column("due_at", DateTime(timezone=True), server_default=func.now()),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("answer", Text),
    Column("delivered_at", DateTime(timezone=True)),
    Column("given_up_at", DateTime(timezone=True)),
    CheckConstraint("num_nonnulls(due_at, delivered_at, given_up_at) = 1", name="one_state"),
    Index("ix_waiting_webhooks_due", "due_at", postgresql_where=literal_column("due_at IS NOT NULL")),
    info=owned("turn_id", "state"),
)
