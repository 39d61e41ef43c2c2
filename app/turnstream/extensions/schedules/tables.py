"""The tables of schedules and triggers."""

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    Float,
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

# Messages that the server posts at ticks. `request` is the message as the API takes it; `every` is in seconds. Without
# a chat each run has a new one. `paused` says why no tick is due. A `trigger` has the secrets of signed messages, which
# start runs in place of ticks; `next_at` is infinity. Up to `busy_until` its messages have used their rate.
schedules = Table(
    "schedules",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE")),
    Column("request", JSON, nullable=False),
    Column("plan", Text),
    Column("cron", Text),
    Column("every", Float),
    Column("zone", Text, nullable=False),
    Column("missed", Text, nullable=False),
    Column("grace", Float, nullable=False),
    Column("next_at", DateTime(timezone=True), nullable=False),
    Column("paused", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    created_at(),
    Column("trigger", JSON),
    Column("busy_until", DateTime(timezone=True)),
    CheckConstraint("num_nonnulls(cron, every, trigger) = 1", name="one_rule"),
    CheckConstraint("missed IN ('run_once', 'skip', 'report')", name="missed"),
    CheckConstraint("paused IN ('person', 'failures')", name="paused"),
    Index(None, "owner"),
    Index(None, "chat_id"),
    Index("ix_schedules_due", "next_at", postgresql_where=literal_column("paused IS NULL")),
    info=owned("owner", "content"),
)

# The ticks of schedules. The key is what keeps a tick from being run twice.
schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("schedule_id", Uuid, ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True),
    Column("tick", DateTime(timezone=True), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # No foreign keys: a run outlasts its chat.
    Column("turn_id", Uuid),
    Column("chat_id", Uuid),
    Column("missed", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    CheckConstraint("state IN ('pending', 'started', 'ended', 'failed', 'missed')", name="state"),
    CheckConstraint("(state IN ('started', 'ended')) <= (turn_id IS NOT NULL)", name="started_has_turn"),
    Index(None, "owner"),
    Index("ix_schedule_runs_pending", "due_at", postgresql_where=literal_column("state = 'pending'")),
    Index("ix_schedule_runs_started", "tick", postgresql_where=literal_column("state = 'started'")),
    info=owned("owner", "state"),
)
