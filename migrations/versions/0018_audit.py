"""the audit trail: tokens, approvals, revoked grants, erasures, logins that were refused

Revision: 0018, after: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Triggers, so that no statement can forget its entry, an older version that still runs or one by hand neither. They
# write as the owner of the tables: whoever changes these rows need not be allowed to write the trail.
_HEAD = "RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT"
_ACTOR = "nullif(current_setting('turnstream.actor', true), '')"
FUNCTIONS = (
    """
CREATE FUNCTION audit_token() HEAD AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail) SELECT
        CASE TG_OP WHEN 'INSERT' THEN 'token.created' ELSE 'token.deleted' END, coalesce(NEW.owner, OLD.owner), ACTOR,
        json_build_object('token', coalesce(NEW.id, OLD.id), 'name', coalesce(NEW.name, OLD.name));
    RETURN NULL;
END
$$
""",
    """
CREATE FUNCTION audit_approval() HEAD AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT CASE NEW.answer->>'kind' WHEN 'approve' THEN 'approval.given' ELSE 'approval.denied' END, owner, ACTOR,
        json_build_object(
            'chat', chats.id, 'turn', NEW.turn_id, 'round', NEW.round, 'tool_use_id', NEW.tool_use_id,
            'tool', NEW.name, 'input_digest', NEW.digest,
            'changed_input_sha256', encode(sha256(convert_to(NEW.answer->>'input', 'UTF8')), 'hex')
        )
    FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = NEW.turn_id;
    RETURN NULL;
END
$$
""",
    """
CREATE FUNCTION audit_grant() HEAD AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT CASE WHEN NEW.revoked_at IS NULL THEN 'grant.given' ELSE 'grant.revoked' END, owner, ACTOR,
        json_build_object(
            'chat', NEW.chat_id, 'turn', NEW.turn_id, 'tool_use_id', NEW.tool_use_id,
            'grant', NEW.id, 'tool', NEW.tool, 'tool_digest', NEW.digest
        )
    FROM chats WHERE chats.id = NEW.chat_id;
    RETURN NULL;
END
$$
""",
)
TRIGGERS = (
    "CREATE TRIGGER token_audited AFTER INSERT OR DELETE ON tokens FOR EACH ROW EXECUTE FUNCTION audit_token()",
    # What a grant answers is inserted with its answer; what expires has no person.
    """
CREATE TRIGGER approval_audited AFTER UPDATE OF answer ON asks FOR EACH ROW
WHEN (NEW.kind = 'approval' AND OLD.answer IS NULL AND NEW.answer->>'kind' IN ('approve', 'deny'))
EXECUTE FUNCTION audit_approval()
""",
    "CREATE TRIGGER grant_given_audited AFTER INSERT ON grants FOR EACH ROW EXECUTE FUNCTION audit_grant()",
    """
CREATE TRIGGER grant_revoked_audited AFTER UPDATE OF revoked_at ON grants FOR EACH ROW
WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL) EXECUTE FUNCTION audit_grant()
""",
)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_owner_id"), "audit", ["owner", "id"], unique=False)
    op.create_index(op.f("ix_audit_created_at"), "audit", ["created_at"], unique=False)
    for statement in (*FUNCTIONS, *TRIGGERS):
        op.execute(statement.replace("HEAD", _HEAD).replace("ACTOR", _ACTOR))


def downgrade() -> None:
    for trigger, table in (
        ("grant_revoked_audited", "grants"),
        ("grant_given_audited", "grants"),
        ("approval_audited", "asks"),
        ("token_audited", "tokens"),
    ):
        op.execute(f"DROP TRIGGER {trigger} ON {table}")
    for function in ("audit_grant", "audit_approval", "audit_token"):
        op.execute(f"DROP FUNCTION {function}()")
    op.drop_table("audit")
