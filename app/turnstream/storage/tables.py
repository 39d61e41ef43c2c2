"""The tables of the core; those of one extension are in its module `tables` (all_tables.py). Constraints rule out wrong
states if SQL can; `migrations/` must agree (a test compares them).
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSVECTOR

from turnstream.domain.plans import PERIODS, RATES
from turnstream.domain.turns import TRANSITIONS
from turnstream.storage.ownership import owned
from turnstream.storage.rows import ENDED_STATUSES, MAY_NAME_UPLOADS, sql_list

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# `json`, never JSONB, for all that a provider may need back byte for byte: JSONB reorders keys and rewrites numbers.
# The text goes in and out verbatim; the code that owns the column encodes and decodes it.


def created_at() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


tokens = Table(
    "tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False, unique=True),
    Column("hash", LargeBinary, nullable=False),
    created_at(),
    Column("scopes", ARRAY(Text), nullable=False, server_default=text("'{read,chat,approve}'")),
    Column("expires_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("plan", Text),
    Column("roles", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    CheckConstraint("octet_length(hash) = 32", name="hash_is_sha256"),
    info=owned("owner", "credential", closed=True),
)

# The keys that encrypt the secrets of owners, each wrapped by the master key that `master` names
# (turnstream.kit.sealing). Without its row nobody can decrypt what the key has encrypted: an erasure deletes it.
owner_keys = Table(
    "owner_keys",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("master", LargeBinary, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
    created_at(),
    CheckConstraint("octet_length(master) = 8", name="master_is_an_id"),
    Index(None, "master"),
    info=owned("owner", "credential", closed=True),
)

# The audit trail. Triggers write of tokens, approvals and grants (`audit_token`, …). It outlasts its owners.
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    created_at(),
    Column("kind", Text, nullable=False),
    Column("owner", Text),
    Column("actor", Text),
    Column("detail", JSON, nullable=False),
    Index(None, "owner", "id"),
    Index(None, "created_at"),
    info=owned("owner", "trail", closed=True),
)

# Requests of owners to erase everything of theirs. If one is due, a replica claims it until `claimed_until`.
erasures = Table(
    "erasures",
    metadata,
    Column("owner", Text, primary_key=True),
    created_at(),
    Column("due_at", DateTime(timezone=True), nullable=False),
    Column("claimed_until", DateTime(timezone=True)),
    info=owned("owner", "state", closed=True),
)

# Short-lived tokens, which go with the stored token that was exchanged for them.
browser_tokens = Table(
    "browser_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("plan", Text),
    Column("chat_id", Uuid),
    Column("turn_id", Uuid),
    Column("token_id", Uuid, ForeignKey("tokens.id", ondelete="CASCADE")),
    Column("folder", Text),
    Column("fixed", JSON),
    Column("roles", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    CheckConstraint("octet_length(hash) = 32", name="hash_is_sha256"),
    CheckConstraint("turn_id IS NULL OR chat_id IS NOT NULL", name="turn_has_chat"),
    Index(None, "expires_at"),
    Index(None, "token_id"),
    info=owned("owner", "credential"),
)

# Sessions of people who signed in at an issuer, by the SHA-256 of their cookies. `state` is the digest of the login's:
# each makes one session. `sid` is the issuer's own name of the session. `scopes` are those of the login.
login_sessions = Table(
    "login_sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("state", LargeBinary, nullable=False, unique=True),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("sid", Text),
    Column("name", Text),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("roles", ARRAY(Text), nullable=False),
    Column("plan", Text),
    created_at(),
    Column("last_used_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("octet_length(hash) = 32 AND octet_length(state) = 32", name="sha256"),
    Index(None, "owner"),
    Index(None, "issuer", "subject"),
    Index(None, "expires_at"),
    info=owned("owner", "credential", closed=True),
)

# Owners who came from another cell or went to one, which is `cell`. Until `held_until` a move is under way: triggers on
# what requests insert refuse it (`refuse_owner_who_moves`).
moves = Table(
    "moves",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("cell", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("held_until", DateTime(timezone=True)),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("state IN ('leaving', 'gone', 'arrived')", name="state"),
    CheckConstraint("(state = 'leaving') = (held_until IS NOT NULL)", name="leaving_is_held"),
    info=owned("owner", closed=True),
)

# One row since the first token was created: from then on the server needs tokens, also when the last one is revoked.
token_requirement = Table(
    "token_requirement",
    metadata,
    Column("since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    CheckConstraint("single", name="one_row"),
    info=owned(None),
)

chats = Table(
    "chats",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("title", Text),
    Column("system_prompt", Text),
    Column("settings", JSON, nullable=False, server_default=text("'{}'")),
    created_at(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # The turn whose call it works on; null for a chat of a person. Lists have only these.
    Column("of_turn", Uuid),
    Index(None, "owner", "updated_at", "id"),
    Index("ix_chats_of_turn", "of_turn", postgresql_where=literal_column("of_turn IS NOT NULL")),
    info=owned("owner", "content"),
)

# Chats that are gone, for the feed of their owner. A trigger puts the row (`keep_deleted_chat`); it is swept by age.
deleted_chats = Table(
    "deleted_chats",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("chat_id", Uuid, primary_key=True),
    Column("deleted_at", DateTime(timezone=True), nullable=False),
    Index("ix_deleted_chats_owner_deleted_at", "owner", "deleted_at"),
    info=owned("owner", "state"),
)

turns = Table(
    "turns",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("parent_id", Uuid),
    Column("role", Text, nullable=False),
    # A parent is of the other role, in the same chat: the composite foreign key says so.
    Column(
        "parent_role",
        Text,
        Computed("CASE role WHEN 'user' THEN 'assistant' ELSE 'user' END", persisted=True),
    ),
    Column("status", Text, nullable=False),
    Column("request", JSON),
    # The digest of its tools, if the request has none itself.
    Column("tool_set", LargeBinary),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("recoveries", SmallInteger, nullable=False, server_default=text("0")),
    # The deaths of processes that it may have caused.
    Column("deaths", SmallInteger, nullable=False, server_default=text("0")),
    Column("replica", Uuid),
    # The replicas that cannot run it, one several times if none can, and until when the last one leaves it alone.
    Column("declined", ARRAY(Uuid)),
    Column("declined_until", DateTime(timezone=True)),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    # How many calls ever waited for a person or had a job. How many answers, steers and outcomes of jobs have arrived
    # while the turn was open.
    Column("asked", Integer, nullable=False, server_default=text("0")),
    Column("arrivals", Integer, nullable=False, server_default=text("0")),
    Column("hook_failures", Integer, nullable=False, server_default=text("0")),
    Column("stop_reason", Text),
    Column("error", JSON),
    Column("usage", JSON, nullable=False, server_default=text("'{}'")),
    created_at(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    # The turn that a fork copied. It may be gone.
    Column("forked_from", Uuid),
    # The numbers of its attempts, from the one on that it was made with; null while that is the only one. A trigger
    # keeps it (`keep_lineage`).
    Column("lineage", ARRAY(Integer)),
    # The owner of the chat, for turns that are open (`keep_owner_of_turn`): the queue is shared out by it.
    Column("queue_owner", Text),
    UniqueConstraint("chat_id", "id", "role"),
    ForeignKeyConstraint(
        ["chat_id", "parent_id", "parent_role"],
        ["turns.chat_id", "turns.id", "turns.role"],
        name="fk_turns_parent_is_of_the_other_role",
        ondelete="CASCADE",
    ),
    CheckConstraint("role IN ('user', 'assistant')", name="role"),
    CheckConstraint(f"status IN {sql_list(TRANSITIONS)}", name="status"),
    CheckConstraint("role = 'assistant' OR status = 'complete'", name="user_turn_is_complete"),
    CheckConstraint("(role = 'assistant') = (request IS NOT NULL)", name="assistant_turn_has_request"),
    CheckConstraint("role = 'user' OR parent_id IS NOT NULL", name="assistant_turn_has_parent"),
    CheckConstraint("parent_id <> id", name="not_its_own_parent"),
    CheckConstraint("(status = 'running') = (replica IS NOT NULL)", name="running_has_replica"),
    CheckConstraint("status <> 'running' OR attempt > 0", name="running_has_attempt"),
    CheckConstraint(f"(status IN {ENDED_STATUSES}) = (ended_at IS NOT NULL)", name="terminal_has_end"),
    CheckConstraint("(status = 'error') = (error IS NOT NULL)", name="error_says_why"),
    CheckConstraint(
        "role = 'user' OR status <> 'complete' OR stop_reason IS NOT NULL", name="complete_has_stop_reason"
    ),
    CheckConstraint("attempt >= 0 AND recoveries >= 0", name="counts"),
    CheckConstraint("asked >= 0 AND arrivals >= 0", name="people_counts"),
    Index(None, "chat_id", "parent_id"),
    Index(None, "chat_id", "created_at", "id"),
    Index("ix_turns_queue", "created_at", "id", postgresql_where=literal_column("status = 'queued'")),
    Index(
        "ix_turns_owners",
        *("status", "queue_owner", "created_at", "id"),
        postgresql_where=literal_column("status IN ('queued', 'running')"),
    ),
    Index("ix_turns_running", "replica", postgresql_where=literal_column("status = 'running'")),
    Index("ix_turns_open", "chat_id", postgresql_where=literal_column("status IN ('queued', 'running', 'waiting')")),
    Index("ix_turns_failed", "ended_at", postgresql_where=literal_column("status = 'error'")),
    Index("ix_turns_tool_set", "tool_set", postgresql_where=literal_column("tool_set IS NOT NULL")),
    info=owned("chat_id", "content"),
)

# The tools of requests, once for each owner. `digest` is a SHA-256 of the owner who has stored them and of their text.
# `used_at` is behind the last use by an hour at most (`keep_tool_set`).
tool_sets = Table(
    "tool_sets",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("tools", JSON, nullable=False),
    Column("used_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
    info=owned("owner", "state"),
)

# Turns that were deleted from a chat that is still there, for the readers of the chat and of the owner's feed. `place`
# is that of the turn (app/turnstream/storage/chats/chat_changes.py). A queued turn that was edited or moved has left a
# place, too, and is there at another one.
deleted_turns = Table(
    "deleted_turns",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("place", BigInteger, primary_key=True),
    Column("deleted_at", DateTime(timezone=True), nullable=False),
    Index("ix_deleted_turns_chat_id_deleted_at", "chat_id", "deleted_at"),
    info=owned("chat_id", "state"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("model", Text),
    Column("messages", Integer, nullable=False),
    Column("request_id", Text),
    Column("stop_reason", Text),
    Column("usage", JSON, nullable=False, server_default=text("'{}'")),
    Column("data", JSON),
    Column("sealed_by", Integer),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("first_delta_at", DateTime(timezone=True)),
    Column("sealed_at", DateTime(timezone=True)),
    Column("estimated_tokens", Integer),
    # By the prices of the time when the round was sealed or voided.
    Column("cost", Numeric),
    CheckConstraint("number > 0 AND attempt > 0 AND messages > 0", name="counts"),
    CheckConstraint("(sealed_by IS NULL) = (sealed_at IS NULL)", name="sealed_by_and_when"),
    CheckConstraint("sealed_by >= attempt", name="sealed_by_later_attempt"),
    CheckConstraint("sealed_by IS NULL OR stop_reason IS NOT NULL", name="sealed_has_stop_reason"),
    CheckConstraint("stop_reason <> 'voided' OR sealed_by IS NULL", name="voided_is_not_sealed"),
    Index(
        "uq_rounds_one_sealed",
        "turn_id",
        "number",
        unique=True,
        postgresql_where=literal_column("sealed_by IS NOT NULL"),
    ),
    info=owned("turn_id", "content"),
)

# The ledger: what each model call has used and cost. It outlasts chats and turns, or deleting them would hide what was
# spent. `call` is "number.attempt" of a round; the id of a call beside the turn, a summary of a result or a title.
charges = Table(
    "charges",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("chat_id", Uuid),
    Column("model", Text, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cache_read_tokens", BigInteger, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost", Numeric),
    Column("charged_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # Of a turn that was made for another one: the root of the family, whose budgets they share.
    Column("root_turn", Uuid),
    Index("ix_charges_root_turn", "root_turn", postgresql_where=literal_column("root_turn IS NOT NULL")),
    Index("ix_charges_owner_charged_at", "owner", "charged_at"),
    Index("ix_charges_charged_at", "charged_at", postgresql_using="brin", postgresql_with={"autosummarize": "on"}),
    info=owned("owner", "state"),
)

# The use of an owner's rates: in the minute, day and month (of UTC) that began at these times, of
# reservations too. `running_turns` is the limit for the queue.
accounts = Table(
    "accounts",
    metadata,
    Column("owner", Text, primary_key=True),
    *(Column(period, DateTime(timezone=True), nullable=False) for period in PERIODS),
    *(Column(rate, Numeric, nullable=False, server_default=text("0")) for rate in RATES),
    Column("running_turns", Integer),
    info=owned("owner", "state"),
)

# The greatest use of a running model call; 0 if no plan limits it. Its charge takes its place, or it is given
# back. A call whose process dies before its reply begins is charged `request_tokens` and `request_cost`.
reservations = Table(
    "reservations",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("owner", Text, nullable=False),
    Column("turn_id", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("call", Text, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", Numeric, nullable=False),
    Column("chat_id", Uuid),
    Column("kind", Text),
    Column("model", Text),
    Column("request_tokens", BigInteger),
    Column("request_cost", Numeric),
    Column("reserved_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("root_turn", Uuid),
    Index(None, "turn_id"),
    Index(None, "owner"),
    info=owned("owner"),
)

blocks = Table(
    "blocks",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("index", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", JSON),
    Column("tool_use_id", Text),
    Column("name", Text),
    Column("is_error", Boolean, nullable=False, server_default=text("false")),
    Column("interrupted", Boolean, nullable=False, server_default=text("false")),
    Column("notes", JSON),
    # The full text of a result of which the model gets a part. Read on demand only.
    Column("whole", Text),
    # The data of a tool for clients; no model receives it.
    Column("client_data", JSON),
    CheckConstraint('"index" >= 0 AND round >= 0 AND attempt >= 0', name="counts"),
    CheckConstraint(
        "type NOT IN ('tool_use', 'tool_result') OR (tool_use_id IS NOT NULL AND name IS NOT NULL)",
        name="call_has_id_and_name",
    ),
    CheckConstraint("type = 'tool_result' OR NOT is_error", name="only_results_are_errors"),
    CheckConstraint("type = 'tool_result' OR whole IS NULL", name="only_results_are_cut"),
    Index(
        "uq_blocks_one_result_per_call",
        "turn_id",
        "round",
        "tool_use_id",
        unique=True,
        postgresql_where=literal_column("type = 'tool_result'"),
    ),
    Index(
        "uq_blocks_call_ids",
        "turn_id",
        "round",
        "tool_use_id",
        unique=True,
        postgresql_where=literal_column("type = 'tool_use'"),
    ),
    Index(
        "ix_blocks_naming_uploads",
        "turn_id",
        postgresql_where=literal_column(f"{MAY_NAME_UPLOADS} AND data IS NOT NULL"),
    ),
    info=owned("turn_id", "content"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("tool_use_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("settled_at", DateTime(timezone=True)),
    # The preliminary result of the tool: an object with `text` and `data`.
    Column("preliminary", JSON),
    CheckConstraint("state IN ('started', 'settled', 'unknown')", name="state"),
    CheckConstraint("(state = 'started') = (settled_at IS NULL)", name="settled_has_time"),
    info=owned("turn_id", "content"),
)

# A call that runs apart from its turn. A runner has it while `replica` names one that lives; `attempt` counts the runs
# and fences their writes. `handle` is that of a job that something else runs. A job is over with `settled_at`: with an
# outcome, or without one if its call got another result.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("tool_use_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("handle", JSON),
    Column("deadline", DateTime(timezone=True), nullable=False),
    Column("due_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("replica", Uuid),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("started_at", DateTime(timezone=True)),
    Column("checkpoint", JSON),
    Column("progress", Text),
    Column("outcome", JSON),
    Column("settled_at", DateTime(timezone=True)),
    Column("token_digest", LargeBinary),  # who has the token may settle it
    # The turn does not wait: the outcome is delivered as a report, which the turn applies as a steer with the job's id.
    Column("reports", Boolean, nullable=False, server_default=text("false")),
    Column("delivery", Text),
    Column("delivered_to", Uuid),
    Column("delivered_round", Integer),
    Column("asked_in", Integer),  # the attempt that has detached with a question; the next runs get the answer
    Column("queue_owner", Text),  # of a job that is not settled; a trigger sets it
    created_at(),
    UniqueConstraint("turn_id", "round", "tool_use_id"),
    CheckConstraint("outcome IS NULL OR settled_at IS NOT NULL", name="outcome_has_time"),
    CheckConstraint("replica IS NULL OR settled_at IS NULL", name="over_has_no_runner"),
    Index("ix_jobs_unsettled", "due_at", postgresql_where=literal_column("settled_at IS NULL")),
    Index("ix_jobs_owners", "queue_owner", "name", "due_at", postgresql_where=literal_column("settled_at IS NULL")),
    Index("ix_jobs_deadlines", "deadline", postgresql_where=literal_column("settled_at IS NULL")),
    Index("ix_jobs_reporting", "turn_id", postgresql_where=literal_column("reports AND settled_at IS NULL")),
    Index("ix_jobs_runners", "replica", postgresql_where=literal_column("replica IS NOT NULL")),
    Index(
        "ix_jobs_undelivered",
        "settled_at",
        postgresql_where=literal_column("reports AND settled_at IS NOT NULL AND delivery IS NULL"),
    ),
    info=owned("turn_id", "state"),
)

# A call that waits for a person: for the result of a tool that the client runs, or for permission to run it. `digest`
# is of the exact input; an answer with another digest is refused.
asks = Table(
    "asks",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("tool_use_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("asked_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True)),
    Column("answer", JSON),
    Column("answered_at", DateTime(timezone=True)),
    # Of the tool as it was shown, if an approval may be remembered for the chat.
    Column("tool_digest", Text),
    Column("question", JSON),
    # Who alone may answer: a trigger holds each answer to it (`check_approver`).
    Column("approvers", ARRAY(Text)),
    # Approval links that were signed until then answer nothing.
    Column("links_revoked_at", DateTime(timezone=True)),
    CheckConstraint("kind IN ('client', 'approval', 'elicitation', 'sign_in')", name="kind"),
    CheckConstraint("(kind IN ('elicitation', 'sign_in')) = (question IS NOT NULL)", name="elicitation_has_question"),
    CheckConstraint("(answer IS NULL) = (answered_at IS NULL)", name="answer_has_time"),
    Index("ix_asks_open", "turn_id", postgresql_where=literal_column("answer IS NULL")),
    Index("ix_asks_expiry", "expires_at", postgresql_where=literal_column("answer IS NULL")),
    info=owned("turn_id", "content"),
)

# A message of the user to an open turn, or the report of the job with its id, until the turn takes it in as blocks of
# its own.
steers = Table(
    "steers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("blocks", JSON, nullable=False),
    created_at(),
    Column("taken_at", DateTime(timezone=True)),
    Column("is_report", Boolean, nullable=False, server_default=text("false")),
    Index(None, "turn_id"),
    info=owned("turn_id", "content"),
)

# A person's permission for further calls of a tool in a chat. `digest` is of the tool: a changed one needs a decision
# again. The turn of the approval may be deleted without it.
grants = Table(
    "grants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("tool", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("when", JSON),
    Column("turn_id", Uuid, nullable=False),
    Column("tool_use_id", Text, nullable=False),
    created_at(),
    Column("revoked_at", DateTime(timezone=True)),
    Index("ix_grants_chat_id", "chat_id", postgresql_where=literal_column("revoked_at IS NULL")),
    info=owned("chat_id", "content"),
)

# A request that carried an Idempotency-Key, and the exchange it made. `digest` is of the request, so that the same key
# with another body is refused.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("turn_id", Uuid, ForeignKey("turns.id", ondelete="CASCADE")),  # null once the message was withdrawn
    Column("steer_id", Uuid),
    created_at(),
    CheckConstraint("length(key) BETWEEN 1 AND 255", name="key_length"),
    Index(None, "turn_id"),
    Index("ix_idempotency_keys_withdrawn", "owner", "key", postgresql_where=literal_column("turn_id IS NULL")),
    info=owned("owner", "content"),
)

# The journal: the open text of running turns. Each replica has a log of its own, one row per tick, with the new pieces
# of all its turns as JSON (turnstream.storage.runs.journal). Ticks up to `checkpoint` are stored, too.
# UNLOGGED: a running executor still has the text if Postgres restarts. No foreign key: it would lock a logged row.
journal_ticks = Table(
    "journal_ticks",
    metadata,
    Column("replica", Uuid, primary_key=True),
    Column("tick", BigInteger, primary_key=True),
    Column("checkpoint", BigInteger, nullable=False),
    Column("pieces", Text, nullable=False),
    prefixes=["UNLOGGED"],
    info=owned(None),
)

# The part that checkpoints have stored, in pieces from offset `start`, until the block is closed.
open_text = Table(
    "open_text",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("index", Integer, primary_key=True),
    Column("start", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("tool_use_id", Text),
    Column("name", Text),
    Column("text", Text, nullable=False),
    info=owned("turn_id", "state"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("address", Text, nullable=False),
    # The advisory lock that the replica's own session holds as long as it lives.
    Column("session", BigInteger, nullable=False, unique=True),
    created_at(),
    Column("lease_until", DateTime(timezone=True), nullable=False),
    # The kinds of webhooks that turns leave while this replica lives.
    Column("webhooks", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    # The turns beside which it claims nothing, because they may end the process.
    Column("suspects", ARRAY(Uuid)),
    # Digests of what turns can observe of its configuration; null for the version before.
    Column("configuration", JSON),
    # When an operator has ordered that it drains.
    Column("draining_since", DateTime(timezone=True)),
    # False for a version that does not sign the owners of its statements.
    Column("signs", Boolean, nullable=False, server_default=text("false")),
    # False for a version that looks for tools in requests alone.
    Column("reads_tool_sets", Boolean, nullable=False, server_default=text("false")),
    # False for a version that knows no jobs.
    Column("runs_jobs", Boolean, nullable=False, server_default=text("false")),
    # The active extensions, for triggers. The version before names none, and has the search.
    Column("extensions", ARRAY(Text), nullable=False, server_default=text("'{search}'")),
    # False for a version that applies steers as it has read them, whatever has become of them since.
    Column("edits_queue", Boolean, nullable=False, server_default=text("false")),
    # The ids of its master keys; null for a version that decrypts no secrets.
    Column("master_keys", ARRAY(LargeBinary)),
    # False for a version that knows no reports of jobs.
    Column("knows_reports", Boolean, nullable=False, server_default=text("false")),
    info=owned(None),
)

# One row: the key of HMAC-SHA256 by which Postgres knows an owner that a server has named, as its two padded halves.
signing_key = Table(
    "signing_key",
    metadata,
    Column("inner_pad", LargeBinary, nullable=False),
    Column("outer_pad", LargeBinary, nullable=False),
    info=owned(None),
)

# The reports of the replicas about their running turns, every few seconds: for people who ask, and for nothing else.
activity = Table(
    "activity",
    metadata,
    Column("replica", Uuid, ForeignKey("replicas.id", ondelete="CASCADE"), primary_key=True),
    Column("reported_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("turns", JSON, nullable=False),
    prefixes=["UNLOGGED"],
    info=owned(None),
)

# Periods that the clock of Postgres has shown twice, because it was set back or another machine took over. A time
# within one has no place in the order of changes.
clock_steps = Table(
    "clock_steps",
    metadata,
    Column("began", DateTime(timezone=True), primary_key=True),
    Column("until", DateTime(timezone=True), nullable=False),
    info=owned(None),
)

# Sweeps, and when each is due again. The replica that does one keeps moving that time on.
sweeps = Table(
    "sweeps",
    metadata,
    Column("name", Text, primary_key=True),
    Column("due_at", DateTime(timezone=True), nullable=False),
    info=owned(None),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    created_at(),
    Column("file_name", Text),
    Column("purpose", Text),
    UniqueConstraint("owner", "digest"),
    CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
    info=owned("owner", "content"),
)

# Files that credentials which are bound to a chat have uploaded for it: their messages may refer to them.
chat_uploads = Table(
    "chat_uploads",
    metadata,
    Column("chat_id", Uuid, ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
    Column("upload_id", Uuid, ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "upload_id"),
    info=owned("chat_id", "state"),
)

documents = Table(
    "documents",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # How many characters of the content are searched: a tsvector holds 1 MB.
    Column("searchable", Integer, nullable=False),
    Column(
        "search",
        TSVECTOR,
        Computed(
            "setweight(to_tsvector('english'::regconfig, translate(path, '/._-', '    ')), 'A') || "
            "to_tsvector('english'::regconfig, left(content, searchable))",
            persisted=True,
        ),
    ),
    CheckConstraint("path ~ '^[^/]' AND path !~ '//' AND length(path) <= 1024", name="path_shape"),
    Index(None, "search", postgresql_using="gin"),
    info=owned("owner", "content"),
)
