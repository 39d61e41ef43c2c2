"""search: an index of what was said, by owner

Revision: 0026, after: 0025

Triggers write it, so that an older version that still runs is indexed too. What was there before is indexed in steps by
a sweep (`search_catch_up`).
"""

from functools import reduce

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# Words are what stands between these. Postgres's parser alone would drop tags, and keep paths and addresses whole.
_ASCII = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_OTHERS = (
    "\u00a0\u00a1\u00ab\u00b7\u00bb\u00bf\u2010\u2011\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2022\u2026"
    "\u3000\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
# Scripts without blanks between words: Thai, Lao, Myanmar, Khmer, Japanese, Chinese.
_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"

_PARTS = {
    "ASCII_SEPARATORS": _ASCII.replace("\\", "\\\\").replace("'", "\\'"),
    "ASCII_BLANKS": " " * len(_ASCII),
    "OTHER_SEPARATORS": _OTHERS,
    "OTHER_BLANKS": " " * len(_OTHERS),
    "UNSPACED": _UNSPACED,
    "AS_DEFINER": "SECURITY DEFINER SET search_path FROM CURRENT",
}
FUNCTIONS = {
    # Words with blanks between them; of a script without blanks all pairs of neighbours.
    "search_plain(text)": r"""
CREATE FUNCTION search_plain(content text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    plain text := translate(content, E'ASCII_SEPARATORS', 'ASCII_BLANKS');
BEGIN
    IF octet_length(plain) = length(plain) THEN
        RETURN plain;
    END IF;
    plain := translate(plain, 'OTHER_SEPARATORS', 'OTHER_BLANKS');
    IF plain !~ 'UNSPACED' THEN
        RETURN plain;
    END IF;
    RETURN regexp_replace(plain, '(UNSPACED{1,2})', ' \1 ', 'g') || ' ' || regexp_replace(
        regexp_replace(plain, '(UNSPACED)(UNSPACED+)', ' \1 \2', 'g'), '(UNSPACED{1,2})', ' \1 ', 'g'
    );
END
$$
""",
    # The words of a text as they are, and their stems, marked by ~, where these are no words of it. Long "words" are
    # data. The limits hold the vector below 1 MB.
    "search_vector(text, text)": """
CREATE FUNCTION search_vector(language text, content text) RETURNS tsvector LANGUAGE plpgsql STABLE AS $$
DECLARE
    plain text := search_plain(left(content, 50000));
    words text[] := tsvector_to_array(to_tsvector('pg_catalog.simple', plain));
    stems text[];
BEGIN
    IF EXISTS (
        SELECT FROM pg_ts_config
        WHERE cfgname = language AND cfgname <> 'simple' AND cfgnamespace = 'pg_catalog'::regnamespace
    ) THEN
        stems := tsvector_to_array(ts_delete(to_tsvector(('pg_catalog.' || language)::regconfig, plain), words));
    END IF;
    RETURN coalesce((
        SELECT array_to_tsvector(array_agg(lexeme)) FROM (
            SELECT word AS lexeme FROM unnest(words) AS word WHERE octet_length(word) <= 100
            UNION ALL
            SELECT '~' || stem FROM unnest(stems) AS stem WHERE octet_length(stem) <= 100
            LIMIT 8000
        ) AS kept
    ), ''::tsvector);
END
$$
""",
    # A segment has 250 chats; then its owner gets another one. Chats that were there before the index have segments
    # below zero, the newest first.
    "search_assign(uuid, boolean)": """
CREATE FUNCTION search_assign(chat uuid, before boolean) RETURNS void LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    of_chat record;
    wanted text;
    number bigint;
BEGIN
    SELECT chats.owner, title, settings ->> 'search_language' AS language, chats.created_at,
        search_owners.language AS of_owner, coalesce(tool_results, false) AS tool_results
    INTO of_chat FROM chats LEFT JOIN search_owners ON search_owners.owner = chats.owner WHERE chats.id = chat;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    wanted := coalesce(of_chat.language, of_chat.of_owner, 'simple');
    SELECT segment INTO number FROM search_chats WHERE chat_id = chat;
    IF number IS NULL THEN
        UPDATE search_segments SET chats = chats + 1
        WHERE id = (
            SELECT CASE WHEN before THEN min(id) ELSE max(id) END FROM search_segments
            WHERE owner = of_chat.owner AND (id < 0) = before
        ) AND chats < 250
        RETURNING id INTO number;
    END IF;
    IF number IS NULL THEN
        INSERT INTO search_segments (id, owner, chats)
        VALUES (nextval('search_segment_ids') * CASE WHEN before THEN -1 ELSE 1 END, of_chat.owner, 1)
        RETURNING id INTO number;
    END IF;
    UPDATE search_segments SET languages = array_append(languages, wanted)
    WHERE id = number AND wanted <> 'simple' AND wanted <> ALL (languages);
    INSERT INTO search_chats (chat_id, owner, segment, language, tool_results, form, created_at, added_at, title)
    VALUES (chat, of_chat.owner, number, wanted, of_chat.tool_results,
        wanted || CASE WHEN of_chat.tool_results THEN ', tools' ELSE '' END, of_chat.created_at,
        clock_timestamp(), search_vector(wanted, coalesce(of_chat.title, '')))
    ON CONFLICT (chat_id) DO UPDATE
    SET language = EXCLUDED.language, tool_results = EXCLUDED.tool_results, form = EXCLUDED.form,
        title = EXCLUDED.title, added_at = EXCLUDED.added_at
    WHERE search_chats.segment = EXCLUDED.segment;
END
$$
""",
    # What was said in a turn that has ended, and what its tools returned where that is wanted.
    "search_index(uuid, uuid)": """
CREATE FUNCTION search_index(chat uuid, turn uuid) RETURNS void LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    of_chat record;
BEGIN
    SELECT * INTO of_chat FROM search_chats WHERE chat_id = chat;
    IF NOT FOUND THEN
        PERFORM search_assign(chat, false);
        SELECT * INTO of_chat FROM search_chats WHERE chat_id = chat;
    END IF;
    IF NOT FOUND THEN  -- it was deleted in the same transaction
        RETURN;
    END IF;
    INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, of_tools, of_chat.owner, of_chat.segment, of_chat.form, turns.created_at,
        clock_timestamp(), search_vector(of_chat.language, texts)
    FROM turns CROSS JOIN LATERAL (
        SELECT type = 'tool_result' AS of_tools, string_agg(left(text, 50000), ' ' ORDER BY index) AS texts FROM blocks
        WHERE turn_id = turns.id AND (
            type IN ('text', 'user_text') OR type = 'tool_result' AND of_chat.tool_results
        )
        GROUP BY 1
        UNION ALL
        SELECT false, '' WHERE NOT EXISTS (
            SELECT FROM blocks WHERE turn_id = turns.id AND type IN ('text', 'user_text')
        )
    ) AS parts
    WHERE turns.id = turn AND chat_id = chat AND ended_at IS NOT NULL
    ON CONFLICT (chat_id, turn_id, role, of_tools) DO UPDATE
    SET words = EXCLUDED.words, form = EXCLUDED.form, added_at = EXCLUDED.added_at;
END
$$
""",
    # A step of the sweep: up to `most` turns of chats whose texts are to be indexed, the newest chat first. False when
    # nothing is left.
    "search_catch_up(integer)": """
CREATE FUNCTION search_catch_up(most integer) RETURNS boolean LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    next uuid;
    missing uuid[];
    done integer := 0;
BEGIN
    WHILE done < most LOOP
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
""",
    # The words of a segment, up to some time: a search leaves out a segment that has not all of its words, but for
    # what came later. Above 900 kB they are left out, and the segment is always read.
    "search_cover(bigint, timestamptz)": """
CREATE FUNCTION search_cover(part bigint, until timestamptz) RETURNS void LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    before record;
    lexemes text[];
    size bigint;
BEGIN
    SELECT covered_until, resets, vocabulary INTO before FROM search_segments WHERE id = part;
    SELECT array_agg(lexeme), sum(octet_length(lexeme)) INTO lexemes, size FROM (
        SELECT unnest(tsvector_to_array(before.vocabulary)) AS lexeme
        UNION
        SELECT unnest(tsvector_to_array(words)) FROM search_texts
        WHERE segment = part AND added_at > before.covered_until AND added_at <= until
        UNION
        SELECT unnest(tsvector_to_array(title)) FROM search_chats
        WHERE segment = part AND added_at > before.covered_until AND added_at <= until
    ) AS words;
    UPDATE search_segments
    SET vocabulary = CASE WHEN size <= 900000 THEN array_to_tsvector(lexemes) END, covered_until = until
    WHERE id = part AND resets = before.resets AND covered_until = before.covered_until;
END
$$
""",
    # A step of the sweep over the segments behind `after`: covers those with a hundred texts that are not covered.
    # Texts of the last minute may not be visible yet. Returns the last segment that it has looked at.
    "search_cover_some(bigint)": """
CREATE FUNCTION search_cover_some(after bigint) RETURNS bigint LANGUAGE plpgsql AS_DEFINER AS $$
DECLARE
    until timestamptz := clock_timestamp() - interval '1 minute';
    next record;
    last bigint;
BEGIN
    FOR next IN SELECT id, covered_until FROM search_segments WHERE id > after ORDER BY id LIMIT 20 LOOP
        last := next.id;
        IF (SELECT count(*) FROM (
            SELECT FROM search_texts WHERE segment = next.id AND added_at > next.covered_until AND added_at <= until
            LIMIT 100
        ) AS later) = 100 THEN
            PERFORM search_cover(next.id, until);
        END IF;
    END LOOP;
    RETURN last;
END
$$
""",
    # The chats of one owner in which each of the words begins a word, or has the stem of one. Segments from `first` on
    # are searched, the newest first, until 200 chats are found, or it was enough work; `rest` is in a row of its own:
    # the segment to go on with. A caller to whom row-level security applies has the rows of its owner alone; that role
    # itself could not have the words compared before the policy.
    "search_matches(text, bigint, text[], boolean, timestamptz, timestamptz, uuid)": """
CREATE FUNCTION search_matches(
    of_owner text, first bigint, wanted text[], with_tools boolean, since timestamptz, until timestamptz, only_chat uuid
) RETURNS TABLE (chat uuid, turn uuid, score integer, rest bigint)
LANGUAGE plpgsql STABLE AS_DEFINER SET jit = off AS $$
DECLARE
    queries tsquery[];
    wholes tsquery[];
    every tsquery;
    either tsquery;
    part record;
    looked integer := 0;
    seen integer := 0;
    found_chats integer := 0;
    matched integer;
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM current_setting('turnstream.owner', true)
    THEN
        RETURN;
    END IF;
    -- Of each word its tokens, which hold no quotes and no ~: search_plain has replaced them.
    WITH languages AS (
        SELECT DISTINCT unnest(languages) AS language FROM search_segments WHERE owner = of_owner
    ), tokens AS (
        SELECT number, token, (
            SELECT string_agg(
                format(CASE WHEN stem = token THEN ' | ''~%1$s''' ELSE ' | ''~%1$s'' | ''%1$s''' END, stem), ''
            )
            FROM languages CROSS JOIN LATERAL unnest(
                tsvector_to_array(to_tsvector(('pg_catalog.' || language)::regconfig, token))
            ) AS stem
        ) AS stems
        FROM unnest(wanted) WITH ORDINALITY AS word (content, number) CROSS JOIN LATERAL unnest(
            tsvector_to_array(to_tsvector('pg_catalog.simple', search_plain(content)))
        ) AS token
        WHERE octet_length(token) <= 100
    ), of_words AS (
        SELECT string_agg(format('(''%s'':*%s)', token, stems), ' & ')::tsquery AS query,
            string_agg(format('(''%s''%s)', token, stems), ' & ')::tsquery AS whole
        FROM tokens GROUP BY number
    )
    SELECT array_agg(query), array_agg(of_words.whole) INTO queries, wholes FROM of_words;
    IF queries IS NULL THEN
        RETURN;
    END IF;
    every := ('(' || array_to_string(queries, ') & (') || ')')::tsquery;
    either := ('(' || array_to_string(queries, ') | (') || ')')::tsquery;
    FOR part IN
        SELECT id, chats FROM search_segments
        WHERE owner = of_owner AND id <= first AND (
            only_chat IS NULL OR id = (SELECT segment FROM search_chats WHERE chat_id = only_chat AND owner = of_owner)
        )
        ORDER BY id DESC
    LOOP
        IF found_chats >= 200 OR looked >= 3000 OR seen >= 100 THEN
            rest := part.id;
            RETURN NEXT;
            RETURN;
        END IF;
        seen := seen + 1;
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM search_segments WHERE id = part.id AND (
                vocabulary IS NULL OR vocabulary @@ every OR EXISTS (
                    SELECT FROM search_texts
                    WHERE segment = part.id AND added_at > covered_until AND words @@ either
                ) OR EXISTS (
                    SELECT FROM search_chats
                    WHERE segment = part.id AND added_at > covered_until AND title @@ either
                )
            )
        );
        looked := looked + part.chats;
        RETURN QUERY
        WITH matches AS MATERIALIZED (
            SELECT chat_id, turn_id, created_at, number, words @@ whole AS whole
            FROM (
                SELECT chat_id, NULL::uuid AS turn_id, title AS words, created_at FROM search_chats
                WHERE segment = part.id AND title @@ either
                UNION ALL
                SELECT chat_id, turn_id, words, created_at FROM search_texts
                WHERE segment = part.id AND words @@ either AND (with_tools OR NOT of_tools)
            ) AS texts CROSS JOIN unnest(queries, wholes) WITH ORDINALITY AS word (query, whole, number)
            WHERE words @@ query AND (since IS NULL OR created_at >= since) AND (until IS NULL OR created_at < until)
              AND (only_chat IS NULL OR chat_id = only_chat)
        ), of_chats AS (
            SELECT chat_id, count(DISTINCT number) FILTER (WHERE turn_id IS NULL) AS titled FROM matches
            GROUP BY chat_id HAVING count(DISTINCT number) = cardinality(queries)
        ), of_turns AS (
            SELECT chat_id, turn_id, count(DISTINCT number) AS together, min(created_at) AS created_at,
                count(DISTINCT number) FILTER (WHERE matches.whole) AS exact
            FROM matches GROUP BY chat_id, turn_id
        )
        SELECT DISTINCT ON (chat_id) chat_id, CASE WHEN titled < cardinality(queries) THEN turn_id END,
            (4 * titled + 2 * together + exact)::integer, NULL::bigint
        FROM of_chats JOIN of_turns USING (chat_id)
        ORDER BY chat_id, turn_id IS NULL, together DESC, exact DESC, of_turns.created_at, turn_id;
        GET DIAGNOSTICS matched = ROW_COUNT;
        found_chats := found_chats + matched;
    END LOOP;
END
$$
""",
    # The triggers. Those of turns are deferred: a copy of a turn gets its blocks after it.
    "keep_searchable_chat()": """
CREATE FUNCTION keep_searchable_chat() RETURNS trigger LANGUAGE plpgsql AS_DEFINER AS $$
BEGIN
    PERFORM search_assign(NEW.id, false);
    IF TG_OP = 'UPDATE' AND OLD.settings ->> 'search_language' IS DISTINCT FROM NEW.settings ->> 'search_language' THEN
        INSERT INTO search_backlog (chat_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$
""",
    "keep_searchable_turn()": """
CREATE FUNCTION keep_searchable_turn() RETURNS trigger LANGUAGE plpgsql AS_DEFINER AS $$
BEGIN
    PERFORM search_index(NEW.chat_id, NEW.id);
    RETURN NULL;
END
$$
""",
    # What is deleted leaves the words of its segment too: they are collected again.
    "forget_searchable()": """
CREATE FUNCTION forget_searchable() RETURNS trigger LANGUAGE plpgsql AS_DEFINER AS $$
BEGIN
    UPDATE search_segments SET vocabulary = NULL, covered_until = '-infinity', resets = resets + 1
    WHERE id IN (SELECT segment FROM gone);
    RETURN NULL;
END
$$
""",
}
TRIGGERS = {
    "chat_forgotten ON search_chats": """
CREATE TRIGGER chat_forgotten AFTER DELETE ON search_chats REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION forget_searchable()
""",
    "text_forgotten ON search_texts": """
CREATE TRIGGER text_forgotten AFTER DELETE ON search_texts REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION forget_searchable()
""",
    "chat_made_searchable ON chats": """
CREATE CONSTRAINT TRIGGER chat_made_searchable AFTER INSERT ON chats DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION keep_searchable_chat()
""",
    "chat_changed_searchable ON chats": """
CREATE TRIGGER chat_changed_searchable AFTER UPDATE OF title, settings ON chats FOR EACH ROW
WHEN (OLD.title IS DISTINCT FROM NEW.title OR OLD.settings::text IS DISTINCT FROM NEW.settings::text)
EXECUTE FUNCTION keep_searchable_chat()
""",
    "turn_made_searchable ON turns": """
CREATE CONSTRAINT TRIGGER turn_made_searchable AFTER INSERT ON turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION keep_searchable_turn()
""",
    "turn_ended_searchable ON turns": """
CREATE CONSTRAINT TRIGGER turn_ended_searchable AFTER UPDATE OF ended_at ON turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION keep_searchable_turn()
""",
}


def upgrade() -> None:
    op.create_table(
        "search_owners",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("tool_results", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_search_owners")),
    )
    op.create_table(
        "search_segments",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("chats", sa.Integer(), nullable=False),
        sa.Column("languages", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("vocabulary", postgresql.TSVECTOR(), nullable=True),
        sa.Column("covered_until", sa.DateTime(timezone=True), server_default=sa.text("'-infinity'"), nullable=False),
        sa.Column("resets", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search_segments")),
    )
    op.create_index(op.f("ix_search_segments_owner_id"), "search_segments", ["owner", "id"], unique=False)
    op.create_table(
        "search_chats",
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("tool_results", sa.Boolean(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("title", postgresql.TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_search_chats_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("chat_id", name=op.f("pk_search_chats")),
    )
    op.create_table(
        "search_texts",
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("of_tools", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id", "turn_id", "role"],
            ["turns.chat_id", "turns.id", "turns.role"],
            name="fk_search_texts_turn",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("chat_id", "turn_id", "role", "of_tools", name=op.f("pk_search_texts")),
    )
    op.create_table(
        "search_backlog",
        sa.Column("chat_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"], name=op.f("fk_search_backlog_chat_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("chat_id", name=op.f("pk_search_backlog")),
    )
    for table in ("search_chats", "search_texts"):
        op.create_index(op.f(f"ix_{table}_segment_added_at"), table, ["segment", "added_at"], unique=False)
    op.execute("CREATE SEQUENCE search_segment_ids")
    for function in FUNCTIONS.values():
        made = reduce(lambda text, part: text.replace(*part), _PARTS.items(), function)
        op.execute(sa.text(made.replace(":", r"\:")))
    for trigger in TRIGGERS.values():
        op.execute(trigger)
    op.execute("INSERT INTO search_backlog (chat_id) SELECT id FROM chats")


def downgrade() -> None:
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}")
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {signature}")
    op.execute("DROP SEQUENCE search_segment_ids")
    for table in ("search_backlog", "search_texts", "search_chats", "search_segments", "search_owners"):
        op.drop_table(table)
