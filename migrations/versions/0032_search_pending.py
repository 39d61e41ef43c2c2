"""search pending: texts are indexed a second after their commit, for many turns together

Revision: 0032, after: 0031

The triggers write a short row for each text and title, in the transaction that writes it. Replicas of an older version
write the same rows, and their sweep indexes by them too (`search_catch_up`). The functions of the triggers before are
left for a downgrade.
"""

from functools import reduce

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_PARTS = {
    "AS_DEFINER": "SECURITY DEFINER SET search_path FROM CURRENT",
    # One transaction indexes at a time: none assigns a chat twice, and two never wait for each other's segments.
    "INDEXING": "'search_pending'::regclass::oid::bigint",
}
FUNCTIONS = {
    "mark_searchable_chat()": """
CREATE FUNCTION mark_searchable_chat() RETURNS trigger LANGUAGE plpgsql AS_DEFINER AS $$
BEGIN
    INSERT INTO search_pending (owner, chat_id) VALUES (NEW.owner, NEW.id);
    IF TG_OP = 'UPDATE' AND OLD.settings ->> 'search_language' IS DISTINCT FROM NEW.settings ->> 'search_language' THEN
        INSERT INTO search_backlog (chat_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$
""",
    "mark_searchable_turn()": """
CREATE FUNCTION mark_searchable_turn() RETURNS trigger LANGUAGE plpgsql AS_DEFINER AS $$
BEGIN
    INSERT INTO search_pending (owner, chat_id, turn_id) SELECT owner, id, NEW.id FROM chats WHERE id = NEW.chat_id;
    RETURN NULL;
END
$$
""",
    # Chats without a place in a segment get one, as in `search_assign`, but all of an owner together.
    "search_place(uuid[])": """
CREATE FUNCTION search_place(wanted uuid[]) RETURNS void LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    of_owner text;
    placed uuid[];
    part bigint;
    room integer;
BEGIN
    FOR of_owner, wanted IN
        SELECT owner, array_agg(id ORDER BY id) FROM chats
        WHERE id = ANY(wanted) AND NOT EXISTS (SELECT FROM search_chats WHERE chat_id = chats.id)
        GROUP BY owner ORDER BY owner
    LOOP
        WHILE cardinality(wanted) > 0 LOOP
            SELECT id, 250 - chats INTO part, room FROM search_segments
            WHERE owner = of_owner AND id > 0 ORDER BY id DESC LIMIT 1 FOR NO KEY UPDATE;
            IF NOT FOUND OR room <= 0 THEN
                INSERT INTO search_segments (id, owner, chats) VALUES (nextval('search_segment_ids'), of_owner, 0)
                RETURNING id, 250 INTO part, room;
            END IF;
            placed := wanted[:room];
            wanted := wanted[room + 1:];
            INSERT INTO search_chats (chat_id, owner, segment, language, tool_results, form, created_at, added_at, title)
            SELECT chats.id, chats.owner, part, wished, coalesce(tool_results, false),
                wished || CASE WHEN tool_results THEN ', tools' ELSE '' END, chats.created_at, clock_timestamp(),
                search_vector(wished, coalesce(title, ''))
            FROM chats LEFT JOIN search_owners ON search_owners.owner = chats.owner CROSS JOIN LATERAL (
                SELECT coalesce(settings ->> 'search_language', search_owners.language, 'simple')
            ) AS of_chat (wished)
            WHERE chats.id = ANY(placed);
            UPDATE search_segments SET chats = chats + cardinality(placed), languages = ARRAY(
                SELECT unnest(languages)
                UNION
                SELECT language FROM search_chats WHERE chat_id = ANY(placed) AND language <> 'simple'
            ) WHERE id = part;
        END LOOP;
    END LOOP;
END
$$
""",
    # Indexes what the rows `wanted` are of, and returns how many these were. The chats are locked.
    "search_index_rows(bigint[])": """
CREATE FUNCTION search_index_rows(wanted bigint[]) RETURNS integer LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    of_chats uuid[] := ARRAY(SELECT DISTINCT chat_id FROM search_pending WHERE id = ANY(wanted) AND turn_id IS NULL);
    of_turns uuid[] := ARRAY(SELECT turn_id FROM search_pending WHERE id = ANY(wanted) AND turn_id IS NOT NULL);
    held uuid[] := ARRAY(SELECT id FROM turns WHERE id = ANY(of_turns) FOR KEY SHARE SKIP LOCKED);
    done integer;
BEGIN
    -- A turn that another transaction holds is being deleted, or was; that one may wait for a segment.
    of_turns := ARRAY(SELECT unnest(of_turns) EXCEPT SELECT unnest(held));
    DELETE FROM search_pending WHERE id = ANY(wanted) AND (
        turn_id IS NULL OR turn_id <> ALL(of_turns) OR NOT EXISTS (SELECT FROM turns WHERE turns.id = turn_id)
    );
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM search_assign(chat_id, false) FROM search_chats WHERE chat_id = ANY(of_chats);
    PERFORM search_place(of_chats || ARRAY(SELECT chat_id FROM turns WHERE id = ANY(held)));
    INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, of_tools, of_chat.owner, segment, form, turns.created_at, clock_timestamp(),
        search_vector(language, texts)
    FROM turns JOIN search_chats AS of_chat USING (chat_id) CROSS JOIN LATERAL (
        SELECT type = 'tool_result' AS of_tools, string_agg(left(text, 50000), ' ' ORDER BY index) AS texts FROM blocks
        WHERE turn_id = turns.id AND (type IN ('text', 'user_text') OR type = 'tool_result' AND tool_results)
        GROUP BY 1
        UNION ALL
        SELECT false, '' WHERE NOT EXISTS (
            SELECT FROM blocks WHERE turn_id = turns.id AND type IN ('text', 'user_text')
        )
    ) AS parts
    WHERE turns.id = ANY(held) AND ended_at IS NOT NULL
    ON CONFLICT (chat_id, turn_id, role, of_tools) DO UPDATE
    SET words = EXCLUDED.words, form = EXCLUDED.form, added_at = EXCLUDED.added_at;
    RETURN done;
END
$$
""",
    # A step of the indexer: up to `most` rows, the oldest first; returns how many these were. What a deletion or a move of
    # its owner holds is left for a later step.
    "search_index_next(integer)": """
CREATE FUNCTION search_index_next(most integer) RETURNS integer LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    taken bigint[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(INDEXING) THEN
        RETURN 0;
    END IF;
    taken := ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id
        ORDER BY search_pending.id LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    );
    IF cardinality(taken) < most THEN
        DELETE FROM search_pending WHERE NOT EXISTS (SELECT FROM chats WHERE chats.id = chat_id);
    END IF;
    RETURN search_index_rows(taken);
END
$$
""",
    # The texts of an owner are indexed before it searches, the newest first; where the index is busy, without waiting
    # for long.
    "search_index_of(text, integer)": """
CREATE FUNCTION search_index_of(of_owner text, most integer) RETURNS void
LANGUAGE plpgsql AS_DEFINER SET lock_timeout = '2s' AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM current_setting('turnstream.owner', true)
        OR NOT EXISTS (SELECT FROM search_pending WHERE owner = of_owner)
    THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(INDEXING);
    PERFORM search_index_rows(ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id
        WHERE search_pending.owner = of_owner
        ORDER BY search_pending.id DESC LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    ));
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$
""",
}
# As in migration 0026, but for the first lines.
CATCH_UP = """
CREATE OR REPLACE FUNCTION search_catch_up(most integer) RETURNS boolean LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    next uuid;
    missing uuid[];
    done integer := 0;
BEGIN
    {}WHILE done < most LOOP
        SELECT chat_id INTO next FROM search_backlog ORDER BY chat_id DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN done > 0;
        END IF;
        PERFORM search_assign(next, true);
        DELETE FROM search_texts USING search_chats
        WHERE search_chats.chat_id = next AND search_texts.chat_id = next AND of_tools AND NOT tool_results;
        missing := ARRAY(
            SELECT id FROM turns WHERE chat_id = next AND ended_at IS NOT NULL AND NOT EXISTS (
                SELECT FROM search_texts JOIN search_chats USING (chat_id, form)
                WHERE chat_id = next AND turn_id = turns.id AND search_texts.role = turns.role AND NOT of_tools
            )
            LIMIT most - done
        );
        PERFORM search_index(next, turn) FROM unnest(missing) AS turn;
        done := done + 1 + cardinality(missing);
        IF done <= most THEN
            DELETE FROM search_backlog WHERE chat_id = next;
        END IF;
    END LOOP;
    RETURN true;
END
$$
"""
PENDING_FIRST = """IF search_index_next(most) > 0 THEN
        RETURN true;
    END IF;
    PERFORM pg_advisory_xact_lock(INDEXING);
    """
TRIGGERS = {
    "chat_made_searchable ON chats": """
CREATE TRIGGER chat_made_searchable AFTER INSERT ON chats FOR EACH ROW WHEN (NEW.title IS NOT NULL)
EXECUTE FUNCTION mark_searchable_chat()
""",
    "chat_changed_searchable ON chats": """
CREATE TRIGGER chat_changed_searchable AFTER UPDATE OF title, settings ON chats FOR EACH ROW
WHEN (OLD.title IS DISTINCT FROM NEW.title OR OLD.settings::text IS DISTINCT FROM NEW.settings::text)
EXECUTE FUNCTION mark_searchable_chat()
""",
    "turn_made_searchable ON turns": """
CREATE TRIGGER turn_made_searchable AFTER INSERT ON turns FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL)
EXECUTE FUNCTION mark_searchable_turn()
""",
    "turn_ended_searchable ON turns": """
CREATE TRIGGER turn_ended_searchable AFTER UPDATE OF ended_at ON turns FOR EACH ROW
WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION mark_searchable_turn()
""",
}
# As in migrations 0026 and 0031.
TRIGGERS_BEFORE = [
    """
CREATE CONSTRAINT TRIGGER chat_made_searchable AFTER INSERT ON chats DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION keep_searchable_chat()
""",
    TRIGGERS["chat_changed_searchable ON chats"].replace("mark_searchable_chat", "keep_searchable_chat"),
    """
CREATE CONSTRAINT TRIGGER turn_made_searchable AFTER INSERT ON turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION keep_searchable_turn()
""",
    """
CREATE CONSTRAINT TRIGGER turn_ended_searchable AFTER UPDATE OF ended_at ON turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION keep_searchable_turn()
""",
]


def _execute(function: str) -> None:
    made = reduce(lambda text, part: text.replace(*part), _PARTS.items(), function)
    op.execute(sa.text(made.replace(":", r"\:")))


def upgrade() -> None:
    op.create_table(
        "search_pending",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=True),
        sa.Column("added_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search_pending")),
    )
    op.create_index(op.f("ix_search_pending_owner_id"), "search_pending", ["owner", "id"], unique=False)
    for function in FUNCTIONS.values():
        _execute(function)
    _execute(CATCH_UP.format(PENDING_FIRST))
    for name, trigger in TRIGGERS.items():
        op.execute(f"DROP TRIGGER {name}")
        op.execute(trigger)


def downgrade() -> None:
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}")
    for trigger in TRIGGERS_BEFORE:
        op.execute(trigger)
    op.execute(
        "INSERT INTO search_backlog (chat_id) SELECT DISTINCT chats.id FROM search_pending"
        " JOIN chats ON chats.id = chat_id ON CONFLICT DO NOTHING"
    )
    _execute(CATCH_UP.format(""))
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {signature}")
    op.drop_table("search_pending")
