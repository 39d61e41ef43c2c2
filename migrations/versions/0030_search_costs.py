"""search costs: texts are split at a fifth of the cost, and a chat without words has no row of its own

Revision: 0030, after: 0029

What is indexed stays the same. A chat without a title is assigned to a segment with its first turn.
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

# As in migration 0026.
_ASCII = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_OTHERS = (
    "\u00a0\u00a1\u00ab\u00b7\u00bb\u00bf\u2010\u2011\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2022\u2026"
    "\u3000\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"

# `translate` looks for each character in the whole list, an expression does not.
PLAIN = rf"""
CREATE OR REPLACE FUNCTION search_plain(content text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    plain text := regexp_replace(content, '[\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e]', ' ', 'g');
BEGIN
    IF octet_length(plain) = length(plain) THEN
        RETURN plain;
    END IF;
    plain := regexp_replace(plain, '[{_OTHERS}]', ' ', 'g');
    IF plain !~ '{_UNSPACED}' THEN
        RETURN plain;
    END IF;
    RETURN regexp_replace(plain, '({_UNSPACED}{{1,2}})', ' \1 ', 'g') || ' ' || regexp_replace(
        regexp_replace(plain, '({_UNSPACED})({_UNSPACED}+)', ' \1 \2', 'g'), '({_UNSPACED}{{1,2}})', ' \1 ', 'g'
    );
END
$$
"""
# Most texts have no stems to add and no word to leave out: 26 characters may have more than 100 bytes.
VECTOR = r"""
CREATE OR REPLACE FUNCTION search_vector(language text, content text) RETURNS tsvector LANGUAGE plpgsql STABLE AS $$
DECLARE
    plain text := search_plain(left(content, 50000));
    vector tsvector := strip(to_tsvector('pg_catalog.simple', plain));
    words text[];
    stems text[];
BEGIN
    IF language = 'simple' AND length(vector) <= 8000 AND plain !~ '\S{26}' THEN
        RETURN vector;
    END IF;
    words := tsvector_to_array(vector);
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
"""
PLAIN_BEFORE = PLAIN.replace(
    r"regexp_replace(content, '[\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e]', ' ', 'g')",
    "translate(content, E'{}', '{}')".format(_ASCII.replace("\\", "\\\\").replace("'", "\\'"), " " * len(_ASCII)),
).replace(f"regexp_replace(plain, '[{_OTHERS}]', ' ', 'g')", f"translate(plain, '{_OTHERS}', '{' ' * len(_OTHERS)}')")
VECTOR_BEFORE = VECTOR.replace(
    r"""    IF language = 'simple' AND length(vector) <= 8000 AND plain !~ '\S{26}' THEN
        RETURN vector;
    END IF;
""",
    "",
)
TRIGGER = """
CREATE CONSTRAINT TRIGGER chat_made_searchable AFTER INSERT ON chats DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW {when} EXECUTE FUNCTION keep_searchable_chat()
"""


def upgrade() -> None:
    op.execute(PLAIN)
    op.execute(VECTOR)
    op.execute("DROP TRIGGER chat_made_searchable ON chats")
    op.execute(TRIGGER.format(when="WHEN (NEW.title IS NOT NULL)"))


def downgrade() -> None:
    op.execute("DROP TRIGGER chat_made_searchable ON chats")
    op.execute(TRIGGER.format(when=""))
    op.execute(VECTOR_BEFORE)
    op.execute(PLAIN_BEFORE)
