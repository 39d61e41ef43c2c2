"""Searches titles, messages of people and documents for word beginnings, without an index. The most recently changed
results are first.
"""

from collections.abc import Sequence
from typing import Self

from turnstream.libraries.searches.excerpts import AFTER, BEFORE, excerpt_line, pieces_of
from turnstream.libraries.searches.places import SEARCH_ANSWER_TIMEOUT, Places, limited
from turnstream.libraries.searches.sealed_titles import chats_by_sealed_title
from turnstream.libraries.searches.search import Excerpt, ExcerptPiece, FoundDocument, Hit, SearchFilter, TextSearch
from turnstream.storage.chats.chats import chat_from, page_behind, place_of_page
from turnstream.storage.contents import CHATS, IS_SEALED, is_sealed
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.owners.documents import DocumentInfo

# The part of a text around the first occurrence of the first word.
_WINDOW = """
    CROSS JOIN LATERAL (SELECT greatest(strpos(lower({text}), lower(:word)) - :margin_before, 1) AS start) AS begun
    CROSS JOIN LATERAL (
        SELECT substr({text}, start, CAST(:length AS integer)) AS around, start > 1 AS cut_before,
            start + :length <= length({text}) AS cut_after
    ) AS window_of_text
    """
# The turn is null if the title has all words. No index contains the messages, so writing a message costs nothing extra;
# a server with large chats uses the extension `search`.
FIND_CHATS = Statement(
    f"""
    WITH found AS MATERIALIZED (
        SELECT DISTINCT ON (chat_id) chat_id, turns.id
        FROM chats JOIN turns ON chat_id = chats.id JOIN blocks ON turn_id = turns.id
        WHERE owner = :owner AND (type = 'user_text' OR type = 'text' AND blocks.attempt = 0)
          AND NOT {IS_SEALED}
          AND to_tsvector('pg_catalog.simple', left(text, 50000)) @@ to_tsquery('pg_catalog.simple', :sought)
          AND (CAST(:only AS uuid) IS NULL OR chats.id = :only)
          AND (CAST(:since AS timestamptz) IS NULL OR turns.created_at >= :since)
          AND (CAST(:until AS timestamptz) IS NULL OR turns.created_at < :until)
        ORDER BY chat_id, turns.created_at DESC, turns.id
    ), best AS (
        SELECT chats.*, CASE WHEN NOT titled THEN found.id END AS turn
        FROM chats LEFT JOIN found ON chat_id = chats.id CROSS JOIN LATERAL (
            SELECT coalesce(
                to_tsvector('pg_catalog.simple', title) @@ to_tsquery('pg_catalog.simple', :sought)
                    AND NOT {is_sealed("title")}, false
            ) AND (CAST(:since AS timestamptz) IS NULL OR created_at >= :since)
              AND (CAST(:until AS timestamptz) IS NULL OR created_at < :until)
        ) AS each (titled)
        WHERE owner = :owner AND (titled OR found.id IS NOT NULL)
          AND (CAST(:only AS uuid) IS NULL OR chats.id = :only)
          AND (CAST(:before AS timestamptz) IS NULL OR (updated_at, chats.id) < (:before, CAST(:before_id AS uuid)))
        ORDER BY updated_at DESC, chats.id DESC LIMIT :limit
    )
    SELECT best.*, turn IS NOT NULL AS in_text, around, cut_before, cut_after
    FROM best LEFT JOIN LATERAL (
        SELECT around, cut_before, cut_after FROM blocks {_WINDOW.format(text="text")}
        WHERE turn_id = turn AND type IN ('text', 'user_text') AND NOT {IS_SEALED}
            AND to_tsvector('pg_catalog.simple', left(text, 50000)) @@ to_tsquery('pg_catalog.simple', :sought)
        ORDER BY index LIMIT 1
    ) AS message ON true
    ORDER BY updated_at DESC, best.id DESC
    """,
    opens=[CHATS],
    timeout=SEARCH_ANSWER_TIMEOUT,
)
# The vector also contains the words of the path.
FIND_DOCUMENTS = Statement(
    f"""
    SELECT path, length(content) AS size, updated_at, strpos(lower(content), lower(:word)) > 0 AS in_text,
        around, cut_before, cut_after
    FROM documents {_WINDOW.format(text="content")}
    WHERE owner = :owner AND starts_with(path, :prefix) AND search @@ to_tsquery('pg_catalog.english', :sought)
    ORDER BY updated_at DESC, path LIMIT :limit
    """,
    timeout=SEARCH_ANSWER_TIMEOUT,
)


class SimpleSearch(TextSearch):
    """The search that reads the messages of an owner. A text matches only if it has all words."""

    def __init__(self, database: Database, places: Places | None = None) -> None:
        self._database = database
        self._places = places or Places()

    def on(self, database: Database) -> Self:
        return type(self)(database, self._places)

    async def is_complete(self, owner: str) -> bool:  # noqa: ARG002
        return True

    async def page(
        self, owner: str, words: Sequence[str], limit: int, before: str | None, only: SearchFilter
    ) -> tuple[Sequence[Hit], str | None]:
        when, last = place_of_page(before) or (None, None)
        async with self._places.one(), limited(self._database) as connection:
            rows = await connection.rows(
                FIND_CHATS,
                owner=owner,
                since=only.since,
                until=only.until,
                only=only.chat,
                before=when,
                before_id=last,
                limit=limit + 1,
                **_sought(words),
            )
            titled = await chats_by_sealed_title(connection, owner, words, limit + 1, only, place_of_page(before))
        found = {
            row["id"]: Hit(chat_from(row), Excerpt(row["turn"], _pieces(row, row["title"], words))) for row in rows
        }
        found |= {chat.id: Hit(chat, Excerpt(None, pieces_of(chat.title or "", words))) for chat in titled}
        hits = sorted(found.values(), key=lambda hit: (hit.chat.updated_at, hit.chat.id), reverse=True)
        return hits[:limit], page_behind(hits[limit - 1].chat) if len(hits) > limit else None

    async def documents(self, owner: str, words: Sequence[str], prefix: str, limit: int) -> Sequence[FoundDocument]:
        async with self._places.one(), limited(self._database) as connection:
            rows = await connection.rows(FIND_DOCUMENTS, owner=owner, prefix=prefix, limit=limit, **_sought(words))
        return [
            FoundDocument(DocumentInfo(row["path"], row["size"], row["updated_at"]), _pieces(row, row["path"], words))
            for row in rows
        ]


def _sought(words: Sequence[str]) -> dict[str, object]:
    """Returns values of a statement: the words as a query for texts that have all these word beginnings."""
    quoted = (word.replace("\\", "\\\\").replace("'", "''") for word in words)
    return {
        "sought": " & ".join(f"'{word}':*" for word in quoted),
        "word": words[0],
        "margin_before": BEFORE,
        "length": BEFORE + len(words[0]) + AFTER,
    }


def _pieces(row: Row, name: str | None, words: Sequence[str]) -> tuple[ExcerptPiece, ...]:
    """Returns the pieces of the text if it has the words, otherwise the pieces of the name."""
    return pieces_of(excerpt_line(row, words) if row["in_text"] else name or "", words)
