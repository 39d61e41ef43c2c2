"""The tables of the index. `sql/` has its functions."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSVECTOR

from turnstream.storage.ownership import owned
from turnstream.storage.tables import metadata

# The index of the extension `search` (its `search_*.sql`). Chats of an owner are in segments: what is searched does not
# grow with the other owners.
search_owners = Table(
    "search_owners",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("language", Text),
    Column("tool_results", Boolean, nullable=False, server_default=text("false")),
    info=owned("owner", "state"),
)

# Ids count up, so that the newest chats are searched first; below zero they are of chats from before the index.
# `vocabulary` has the words of all texts that were added until `covered_until`; it is collected by a sweep.
search_segments = Table(
    "search_segments",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", Text, nullable=False),
    Column("chats", Integer, nullable=False),
    Column("languages", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("vocabulary", TSVECTOR),
    Column("covered_until", DateTime(timezone=True), nullable=False, server_default=text("'-infinity'")),
    Column("resets", Integer, nullable=False, server_default=text("0")),
    Index(None, "owner", "id"),
    info=owned("owner"),
)

# `form` says how the texts of the chat are to be indexed: the language, and whether results of tools are.
search_chats = Table(
    "search_chats",
    metadata,
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("segment", BigInteger, nullable=False),
    Column("language", Text, nullable=False),
    Column("tool_results", Boolean, nullable=False),
    Column("form", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("added_at", DateTime(timezone=True), nullable=False),
    Column("title", TSVECTOR, nullable=False),
    Index(None, "segment", "added_at"),
    info=owned("owner"),
)

# The words of a turn that has ended, or of what its tools returned.
search_texts = Table(
    "search_texts",
    metadata,
    Column("chat_id", Uuid, primary_key=True),
    Column("turn_id", Uuid, primary_key=True),
    Column("role", Text, primary_key=True),
    Column("of_tools", Boolean, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("segment", BigInteger, nullable=False),
    Column("form", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("added_at", DateTime(timezone=True), nullable=False),
    Column("words", TSVECTOR, nullable=False),
    ForeignKeyConstraint(
        ["chat_id", "turn_id", "role"],
        ["turns.chat_id", "turns.id", "turns.role"],
        name="fk_search_texts_turn",
        ondelete="CASCADE",
    ),
    Index(None, "segment", "added_at"),
    info=owned("owner"),
)

# Texts and titles that are not indexed yet; of a title without a turn. A row is written in the transaction of its text,
# by triggers (`mark_searchable_turn`), and deleted in that which indexes the text. It refers to nothing: what is gone
# needs no index. A text that Postgres has `refused` to index stays, with the reason (`search_index_next`).
search_pending = Table(
    "search_pending",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("chat_id", Uuid, nullable=False),
    Column("turn_id", Uuid),
    Column("added_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("refused", Text),
    Index(None, "owner", "id"),
    info=owned("owner"),
)

# The words of a document, in the language of its owner; null if a sweep has to index it
# (`search_catch_up_documents`).
search_documents = Table(
    "search_documents",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("language", Text),
    Column("words", TSVECTOR, nullable=False),
    ForeignKeyConstraint(
        ["owner", "path"],
        ["documents.owner", "documents.path"],
        name="fk_search_documents_document",
        onupdate="CASCADE",
        ondelete="CASCADE",
    ),
    Index("ix_search_documents_waiting", "owner", "path", postgresql_where=text("language IS NULL")),
    info=owned("owner"),
)

# Chats whose texts are to be indexed by a sweep: those from before the index, and those whose language has changed.
search_backlog = Table(
    "search_backlog",
    metadata,
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
    info=owned("chat_id"),
)
