"""tool sets: the tools of requests are stored once for each owner, not with every answer

Revision: 0048, after: 0047

`keep_tool_set` takes them out of a request that is written. A replica of the version before looks for them in the
request: they stay there while one is alive. The index by which unused sets are found is built by the migration 0049.
"""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

# The owner is part of the digest, so that one that no turn has is nobody's. The text is not brought into another form:
# providers get it byte for byte.
#
# Nobody waits here for another transaction: it may wait for a lock that this one has. The tools stay in the request
# where another one stores the same set. `used_at` is renewed once an hour; a sweep leaves a set alone for two hours.
KEEP_TOOL_SET = """
CREATE FUNCTION keep_tool_set(whose text, INOUT request json, OUT tool_set bytea) LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    found json;
    key bytea;
BEGIN
    BEGIN
        found := request->'tools';
    EXCEPTION WHEN untranslatable_character THEN  -- JSON with a NUL is stored, and not looked into
        RETURN;
    END;
    IF json_typeof(found) IS DISTINCT FROM 'array' OR found->0 IS NULL THEN
        RETURN;
    END IF;
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') AND whose IS DISTINCT FROM owner_in_scope() THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM replicas WHERE NOT reads_tool_sets AND lease_until > now() - interval '5 minutes') THEN
        RETURN;
    END IF;
    key := sha256(convert_to(whose || chr(10) || found::text, 'UTF8'));
    IF NOT EXISTS (
        SELECT FROM tool_sets WHERE owner = whose AND digest = key AND used_at > now() - interval '1 hour'
    ) THEN
        IF NOT pg_try_advisory_xact_lock(hashtextextended(encode(key, 'hex'), 48)) THEN
            RETURN;
        END IF;
        INSERT INTO tool_sets (owner, digest, tools) VALUES (whose, key, found)
        ON CONFLICT (owner, digest) DO UPDATE SET used_at = now();
    END IF;
    tool_set := key;
    request := (SELECT json_object_agg(name, value) FROM json_each(request) AS part (name, value) WHERE name <> 'tools');
END
$$
"""
# The version before finds them where it looks for them.
PUT_BACK = """
UPDATE turns SET tool_set = NULL, request = (left(request::text, -1) || ', "tools": ' || tools::text || '}')::json
FROM tool_sets, chats
WHERE turns.tool_set IS NOT NULL AND chats.id = chat_id AND tool_sets.owner = chats.owner AND digest = turns.tool_set
"""


def upgrade() -> None:
    op.create_table(
        "tool_sets",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_tool_sets_digest_is_sha256")),
        sa.PrimaryKeyConstraint("owner", "digest", name=op.f("pk_tool_sets")),
    )
    op.add_column("turns", sa.Column("tool_set", sa.LargeBinary(), nullable=True))
    op.add_column(
        "replicas", sa.Column("reads_tool_sets", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.execute(KEEP_TOOL_SET)


def downgrade() -> None:
    op.execute("DROP FUNCTION keep_tool_set(text, json)")
    op.execute(PUT_BACK)
    op.drop_column("replicas", "reads_tool_sets")
    op.drop_column("turns", "tool_set")
    op.drop_table("tool_sets")
