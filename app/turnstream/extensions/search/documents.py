"""Searches an owner's documents for a person, with excerpts. The tools of models have a search of their own."""

from collections.abc import Sequence

from turnstream.libraries.searches.excerpts import AFTER, BEFORE, excerpt_line, pieces_of
from turnstream.libraries.searches.places import SEARCH_ANSWER_TIMEOUT
from turnstream.libraries.searches.search import FoundDocument
from turnstream.storage.contents import TEXT_MARK, TEXT_SIZE
from turnstream.storage.database import Statement, Transaction
from turnstream.storage.owners.documents import DocumentInfo

# Documents with the beginnings of all words come first. Then words in the path count most, word beginnings less, and
# whole words least. The binary form of a vector is compared first, because it is created three times as fast as its
# text. A part of a stem does not match.
SEARCH_OWNERS_DOCUMENTS = Statement(
    f"""
    WITH sought AS MATERIALIZED (
        SELECT * FROM search_sought(CAST(:words AS text[]), search_language(:owner))
    ), found AS (
        SELECT path, count(*) FILTER (WHERE words @@ query) AS begun,
            count(*) FILTER (WHERE words @@ whole) AS whole,
            count(*) FILTER (WHERE to_tsvector('pg_catalog.simple', search_plain(path)) @@ query) AS titled
        FROM search_documents CROSS JOIN sought
        WHERE owner = :owner AND starts_with(path, :prefix) AND (
            words @@ query OR NOT EXISTS (
                SELECT FROM unnest(needles) AS needle WHERE position(needle IN tsvectorsend(words)) = 0
            ) AND (anywhere AND language = 'simple' OR words::text ~ ALL (patterns))
        )
        GROUP BY path HAVING count(*) = (SELECT count(*) FROM sought)
    ), best AS (
        SELECT path, row_number() OVER (
            ORDER BY begun = (SELECT count(*) FROM sought) DESC, 4 * titled + 2 * begun + whole DESC,
                updated_at DESC, path
        ) AS place
        FROM found JOIN documents USING (path) WHERE owner = :owner ORDER BY place LIMIT :limit
    )
    SELECT path, {TEXT_SIZE} AS size, updated_at FROM best JOIN documents USING (path) WHERE owner = :owner
    ORDER BY place
    """,
    timeout=SEARCH_ANSWER_TIMEOUT,
)
# Finds the first occurrence of the first of `words` that is in the text, otherwise of a word with the same stem near
# the start of the text.
GET_DOCUMENT_EXCERPTS = Statement(
    f"""
    SELECT hit.path, shown, place > CAST(:margin_before AS integer) + 1 AS cut_before,
        place + length(shown) + :margin_after <= length(content) AS cut_after,
        substr(content, greatest(place - :margin_before, 1),
            least(place - 1, :margin_before) + length(shown) + CAST(:margin_after AS integer)) AS around
    FROM unnest(CAST(:paths AS text[]), CAST(:words AS text[])) AS hit (path, words)
    JOIN documents ON documents.owner = :owner AND documents.path = hit.path
        AND NOT starts_with(content, '{TEXT_MARK}')
    CROSS JOIN LATERAL (
        SELECT CAST('pg_catalog.' || search_language(:owner) AS regconfig) AS language, lower(content) AS lowered
    ) AS document
    CROSS JOIN LATERAL (
        (
            SELECT word AS shown, strpos(lowered, lower(word)) AS place
            FROM unnest(string_to_array(hit.words, ' ')) WITH ORDINALITY AS word (word, number)
            WHERE strpos(lowered, lower(word)) > 0 ORDER BY number LIMIT 1
        )
        UNION ALL
        (
            SELECT token, strpos(lowered, lower(token)) FROM ts_parse('default', search_plain(left(content, 20000)))
            WHERE strpos(lowered, lower(token)) > 0 AND EXISTS (
                SELECT FROM unnest(string_to_array(hit.words, ' ')) AS word
                WHERE to_tsvector(language, token) @@ plainto_tsquery(language, word)
            )
            LIMIT 1
        )
        LIMIT 1
    ) AS found
    """,
    timeout=SEARCH_ANSWER_TIMEOUT,
)


async def best_documents(
    connection: Transaction, owner: str, words: Sequence[str], prefix: str, limit: int
) -> Sequence[FoundDocument]:
    """Returns the best documents that have all of `words` in the path or the text."""
    rows = await connection.rows(SEARCH_OWNERS_DOCUMENTS, owner=owner, words=words, prefix=prefix, limit=limit)
    excerpts = await connection.rows(
        GET_DOCUMENT_EXCERPTS,
        owner=owner,
        paths=[row["path"] for row in rows],
        words=[" ".join(_shown(row["path"], words)) for row in rows],
        margin_before=BEFORE,
        margin_after=AFTER,
    )
    by_path = {row["path"]: row for row in excerpts}
    found = []
    for row in rows:
        line, marked = row["path"], words
        if (excerpt := by_path.get(row["path"])) is not None:
            marked = [*words, excerpt["shown"]]
            line = excerpt_line(excerpt, marked)
        info = DocumentInfo(row["path"], row["size"], row["updated_at"])
        found.append(FoundDocument(info, pieces_of(line, marked)))
    return found


def _shown(path: str, words: Sequence[str]) -> Sequence[str]:
    """Returns the words for an excerpt: the longest first, but words that are in the path last."""
    return sorted(words, key=lambda word: (word.lower() in path.lower(), -len(word)))
