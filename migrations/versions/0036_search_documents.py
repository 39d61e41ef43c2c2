"""search documents: the words of documents, in the language of their owner

Revision: 0036, after: 0035

A trigger writes them, so that documents of a version that still runs have them too. Those from before are indexed in
steps by a sweep (`search_catch_up_documents`). The column `documents.search`, in English, is that of the tools.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

FUNCTIONS = {
    # The words of a path and of the first 600,000 characters: pieces of 50,000 overlap, so that none cuts a word. A
    # vector holds 1 MB.
    "search_document_vector(text, text, text)": """
CREATE FUNCTION search_document_vector(language text, path text, content text) RETURNS tsvector LANGUAGE sql STABLE AS $$
    WITH lexemes AS (
        SELECT unnest(tsvector_to_array(search_vector(language, path))) AS lexeme
        UNION
        SELECT unnest(tsvector_to_array(search_vector(language, substr(content, place, 50000))))
        FROM generate_series(1, least(length(content), 600000), 49900) AS place
    ), sized AS (
        SELECT lexeme, sum(octet_length(lexeme)) OVER (ORDER BY lexeme ROWS UNBOUNDED PRECEDING) AS size FROM lexemes
    )
    SELECT coalesce(array_to_tsvector(array_agg(lexeme)), '') FROM sized WHERE size <= 900000
$$
""",
    "search_language(text)": """
CREATE FUNCTION search_language(of_owner text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT language FROM search_owners WHERE owner = of_owner), 'simple')
$$
""",
    # Each of the wanted words that has tokens: as words that begin so, or have the same stem; as whole words; and as
    # patterns of the text of a vector, for words that have it inside. `needles` are in its binary form too; a vector that
    # has no stems needs no look at the patterns where the tokens may be `anywhere` in a word.
    "search_sought(text[], text)": """
CREATE FUNCTION search_sought(wanted text[], language text)
RETURNS TABLE (query tsquery, whole tsquery, needles bytea[], patterns text[], anywhere boolean)
LANGUAGE sql STABLE AS $$
    WITH tokens AS (
        SELECT number, token, (
            SELECT string_agg(
                format(CASE WHEN stem = token THEN ' | ''~%1$s''' ELSE ' | ''~%1$s'' | ''%1$s''' END, stem), ''
            )
            FROM unnest(tsvector_to_array(to_tsvector(('pg_catalog.' || language)::regconfig, token))) AS stem
            WHERE language <> 'simple'
        ) AS stems
        FROM unnest(wanted) WITH ORDINALITY AS word (content, number) CROSS JOIN LATERAL unnest(
            tsvector_to_array(to_tsvector('pg_catalog.simple', search_plain(content)))
        ) AS token
        WHERE octet_length(token) <= 100
    )
    SELECT string_agg(format('(''%s'':*%s)', token, stems), ' & ')::tsquery,
        string_agg(format('(''%s''%s)', token, stems), ' & ')::tsquery,
        array_agg(convert_to(token, pg_client_encoding())),
        array_agg(CASE WHEN length(token) >= 3 THEN '''([^~''][^'']*)?' ELSE '''' END || token),
        bool_and(length(token) >= 3)
    FROM tokens GROUP BY number
$$
""",
    # A step of the sweep: up to `most` documents that are to be indexed. False when nothing is left.
    "search_catch_up_documents(integer)": """
CREATE FUNCTION search_catch_up_documents(most integer) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    next record;
    indexed integer := 0;
BEGIN
    FOR next IN
        SELECT owner, path, search_language(owner) AS wished FROM search_documents WHERE language IS NULL
        ORDER BY owner, path LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE search_documents SET language = next.wished, words = (
            SELECT search_document_vector(next.wished, next.path, content) FROM documents
            WHERE documents.owner = next.owner AND documents.path = next.path
        )
        WHERE search_documents.owner = next.owner AND search_documents.path = next.path;
        indexed := indexed + 1;
    END LOOP;
    RETURN indexed = most;
END
$$
""",
    "keep_searchable_document()": """
CREATE FUNCTION keep_searchable_document() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO search_documents (owner, path, language, words)
    SELECT NEW.owner, NEW.path, language, search_document_vector(language, NEW.path, NEW.content)
    FROM search_language(NEW.owner) AS language
    ON CONFLICT (owner, path) DO UPDATE SET language = EXCLUDED.language, words = EXCLUDED.words;
    RETURN NULL;
END
$$
""",
    "keep_language_of_documents()": """
CREATE FUNCTION keep_language_of_documents() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE search_documents SET language = NULL
    WHERE owner = NEW.owner AND language <> coalesce(NEW.language, 'simple');
    RETURN NULL;
END
$$
""",
    # An owner who arrives from another cell has a language only under the own name.
    "forget_language_of_document()": """
CREATE FUNCTION forget_language_of_document() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.language := NULL;
    RETURN NEW;
END
$$
""",
}
TRIGGERS = {
    "document_searchable ON documents": """
CREATE TRIGGER document_searchable AFTER INSERT OR UPDATE OF content ON documents
FOR EACH ROW EXECUTE FUNCTION keep_searchable_document()
""",
    "language_of_documents ON search_owners": """
CREATE TRIGGER language_of_documents AFTER INSERT OR UPDATE ON search_owners
FOR EACH ROW EXECUTE FUNCTION keep_language_of_documents()
""",
    "owner_of_document ON search_documents": """
CREATE TRIGGER owner_of_document BEFORE UPDATE OF owner ON search_documents
FOR EACH ROW WHEN (OLD.owner <> NEW.owner) EXECUTE FUNCTION forget_language_of_document()
""",
}


def upgrade() -> None:
    op.create_table(
        "search_documents",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner", "path"],
            ["documents.owner", "documents.path"],
            name="fk_search_documents_document",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("owner", "path", name=op.f("pk_search_documents")),
    )
    op.create_index(
        op.f("ix_search_documents_waiting"),
        "search_documents",
        ["owner", "path"],
        unique=False,
        postgresql_where=sa.text("language IS NULL"),
    )
    for function in FUNCTIONS.values():
        op.execute(sa.text(function.replace(":", r"\:")))
    for trigger in TRIGGERS.values():
        op.execute(trigger)
    op.execute("INSERT INTO search_documents (owner, path, words) SELECT owner, path, '' FROM documents")


def downgrade() -> None:
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}")
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {signature}")
    op.drop_table("search_documents")
