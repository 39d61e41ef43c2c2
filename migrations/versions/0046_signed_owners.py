"""signed owners: the owner and the actor of a statement are values that a server has signed

Revision: 0046, after: 0045

Row-level security compares rows with the setting `turnstream.owner`, and the audit trail names `turnstream.actor`. Any
role may set both, so each carries an HMAC-SHA256 with a key that the API's role cannot read. A replica of the version
before signs nothing: unsigned values are accepted while one is alive.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

# The first one has the rights of the others, which call it. A value that is not signed is refused: a wrong key makes an
# error, not a chat that seems to be gone.
FUNCTIONS = {
    "signed_value(text, text)": """
CREATE FUNCTION signed_value(kind text, value text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF value IS NULL THEN
        RETURN NULL;
    END IF;
    IF EXISTS (
        SELECT FROM signing_key WHERE left(value, 64) = encode(
            sha256(outer_pad || sha256(inner_pad || convert_to(kind || substr(value, 65), 'UTF8'))), 'hex'
        )
    ) THEN
        RETURN substr(value, 66);
    END IF;
    IF EXISTS (SELECT FROM replicas WHERE NOT signs AND lease_until > now() - interval '5 minutes') THEN
        RETURN value;
    END IF;
    RAISE EXCEPTION 'the % of this statement is not signed by a server of this database', kind
    USING ERRCODE = 'insufficient_privilege', HINT = 'Restart the servers if the database was restored.';
END
$$
""",
    "owner_in_scope()": """
CREATE FUNCTION owner_in_scope() RETURNS text LANGUAGE plpgsql STABLE AS_DEFINER AS $$
BEGIN
    RETURN signed_value('owner', nullif(current_setting('turnstream.owner', true), ''));
END
$$
""",
    # The engine and commands, whose connections own the tables, need no signature.
    "actor_in_scope()": """
CREATE FUNCTION actor_in_scope() RETURNS text LANGUAGE plpgsql STABLE AS_DEFINER AS $$
DECLARE
    actor text := nullif(current_setting('turnstream.actor', true), '');
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
        actor := signed_value('actor', coalesce(actor, ''));
    END IF;
    RETURN nullif(actor, '');
END
$$
""",
}
# As in migration 0038, but that a role of the API takes places of the owner in its scope only.
TAKE_PLACE = """
CREATE OR REPLACE FUNCTION take_place(whose text, most_running integer, most_queued integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN{only_own}
    PERFORM pg_advisory_xact_lock(hashtextextended(whose, 44));
    IF most_queued IS NOT NULL THEN
        RETURN most_queued > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose LIMIT most_queued
        ) AS found);
    END IF;
    RETURN NOT EXISTS (SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose)
        AND most_running > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'running' AND queue_owner = whose LIMIT most_running
        ) AS found);
END
$$
"""
ONLY_OWN = """
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') AND whose IS DISTINCT FROM owner_in_scope() THEN
        RETURN false;
    END IF;"""
KEY = "INSERT INTO signing_key VALUES (decode('{inner}', 'hex'), decode('{outer}', 'hex'))"
# The calls that take the place of settings, in the functions that have read these so far.
REPLACED = {
    "current_setting('turnstream.owner', true)": "(SELECT owner_in_scope())",
    "nullif(current_setting('turnstream.actor', true), '')": "actor_in_scope()",
}
REPLACE = """
DO $$
DECLARE entry record;
BEGIN
    FOR entry IN
        SELECT oid, pg_get_functiondef(oid) AS definition FROM pg_proc
        WHERE pronamespace = to_regnamespace(current_schema()) AND strpos(prosrc, {before}) > 0
          AND proname NOT IN ('owner_in_scope', 'actor_in_scope')
    LOOP
        EXECUTE replace(entry.definition, {before}, {after});
    END LOOP;
END
$$
"""
# All at once, before the first change: a replica that runs takes locks of these tables in orders of its own. If it cannot
# have them all, this transaction keeps none.
LOCK = """
DO $$
DECLARE
    names text := (
        SELECT string_agg(DISTINCT format('%I', relname), ', ') FROM pg_class
        WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_schema()) AND (
            relname IN ('asks', 'grants', 'replicas') OR relrowsecurity AND EXISTS (
                SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname IN ('owner', 'queue_owner')
            )
        )
    );
BEGIN
    PERFORM set_config('lock_timeout', '500ms', true);
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', names);
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', '0', true);
END
$$
"""
# Of the tables that have an owner themselves: env.py makes them again. The others follow from these.
POLICIES_GONE = """
DO $$
DECLARE entry record;
BEGIN
    FOR entry IN SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid AND polname = 'by_owner'
        WHERE relnamespace = to_regnamespace(current_schema()) AND EXISTS (
            SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname IN ('owner', 'queue_owner')
        ) ORDER BY relname
    LOOP
        EXECUTE format('DROP POLICY by_owner ON %I', entry.relname);
    END LOOP;
END
$$
"""
# An answer that changes is in the trail too, else a first one that no entry is made of would hide the second.
APPROVAL = """
CREATE TRIGGER approval_audited AFTER UPDATE OF answer ON asks FOR EACH ROW
WHEN (NEW.kind = 'approval' AND {changed} AND NEW.answer->>'kind' IN ('approve', 'deny'))
EXECUTE FUNCTION audit_approval()
"""
# So is a grant that was revoked and is given again.
REVOCATION = """
CREATE TRIGGER grant_revoked_audited AFTER UPDATE OF revoked_at ON grants FOR EACH ROW
WHEN ({changed}) EXECUTE FUNCTION audit_grant()
"""


def _padded(key: bytes, number: int) -> bytes:
    return bytes(byte ^ number for byte in key.ljust(64, b"\0"))


def upgrade() -> None:
    op.execute(LOCK)
    op.create_table(
        "signing_key",
        sa.Column("inner_pad", sa.LargeBinary(), nullable=False),
        sa.Column("outer_pad", sa.LargeBinary(), nullable=False),
    )
    key = secrets.token_bytes(32)
    pads = {"inner": _padded(key, 0x36).hex(), "outer": _padded(key, 0x5C).hex()}
    op.execute(KEY.format(**pads))
    op.add_column("replicas", sa.Column("signs", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    for function in FUNCTIONS.values():
        op.execute(function.replace("AS_DEFINER", "SECURITY DEFINER SET search_path FROM CURRENT"))
    for before, after in REPLACED.items():
        op.execute(REPLACE.format(before=_quoted(before), after=_quoted(after)))
    op.execute(POLICIES_GONE)
    op.execute("DROP TRIGGER approval_audited ON asks")
    op.execute(APPROVAL.format(changed="OLD.answer::text IS DISTINCT FROM NEW.answer::text"))
    op.execute("DROP TRIGGER grant_revoked_audited ON grants")
    op.execute(REVOCATION.format(changed="OLD.revoked_at IS DISTINCT FROM NEW.revoked_at"))
    op.execute(TAKE_PLACE.format(only_own=ONLY_OWN))


def downgrade() -> None:
    op.execute(LOCK)
    op.execute("DROP TRIGGER approval_audited ON asks")
    op.execute(APPROVAL.format(changed="OLD.answer IS NULL"))
    op.execute("DROP TRIGGER grant_revoked_audited ON grants")
    op.execute(REVOCATION.format(changed="OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL"))
    op.execute(TAKE_PLACE.format(only_own=""))
    op.execute(POLICIES_GONE)
    for before, after in REPLACED.items():
        op.execute(REPLACE.format(before=_quoted(after), after=_quoted(before)))
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {signature}")
    op.drop_column("replicas", "signs")
    op.drop_table("signing_key")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
