"""Searches chats, with excerpts, by an index of texts and titles that is updated after these are committed."""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from turnstream.domain.errors import NoSuchPage
from turnstream.extensions.search.documents import best_documents
from turnstream.kit.moments import from_microseconds, microseconds_of
from turnstream.libraries.searches.excerpts import AFTER, BEFORE, excerpt_line, pieces_of
from turnstream.libraries.searches.places import SEARCH_ANSWER_TIMEOUT, Places, limited
from turnstream.libraries.searches.sealed_titles import chats_by_sealed_title
from turnstream.libraries.searches.search import Excerpt, FoundDocument, Hit, SearchFilter, TextSearch
from turnstream.storage.chats.chats import chat_from, page_behind, place_of_page
from turnstream.storage.contents import CHATS, IS_SEALED
from turnstream.storage.database import LONG, Database, Row, Statement, Transaction

# The windows that a page may search; True means that words are also matched inside of other words. Such matches start
# when all chats with the beginnings of the words are found, on the next page if these chats fill the page.
_WINDOWS = (False, False, True)

# A search first indexes at most so many unindexed texts of the owner.
_PENDING = 50

NEWEST: Final = 2**63 - 1

# The row with `rest` shows that older segments exist, and comes first.
_PAGE = """
    WITH found AS MATERIALIZED (
        SELECT * FROM {function}(
            :owner, CAST(:first AS bigint), CAST(:words AS text[]), :tools, CAST(:since AS timestamptz),
            CAST(:until AS timestamptz), CAST(:only AS uuid)
        )
    )
    SELECT chats.*, score, turn, rest FROM found LEFT JOIN chats ON chats.id = chat AND chats.owner = :owner
    WHERE rest IS NOT NULL OR chats.id IS NOT NULL AND (
        CAST(:score AS int) IS NULL OR (score, updated_at, chats.id) < (:score, :before, CAST(:before_id AS uuid))
    )
    ORDER BY rest IS NULL, score DESC, updated_at DESC, chats.id DESC LIMIT CAST(:limit AS int) + 1
    """
_searches = partial(Statement, timeout=SEARCH_ANSWER_TIMEOUT, opens=[CHATS])
SEARCH_CHATS = _searches(_PAGE.format(function="search_matches"))
# SEARCH_INSIDE excludes the chats that SEARCH_CHATS finds.
SEARCH_INSIDE = _searches(_PAGE.format(function="search_inside"))
# Finds the first occurrence of the first of `words` that is in a text of the turn, otherwise of a word with the same
# stem, otherwise the start of a text.
GET_EXCERPTS = Statement(
    f"""
    SELECT hit.turn_id, shown, place > CAST(:margin_before AS integer) + 1 AS cut_before,
        place + length(shown) + :margin_after <= length(text) AS cut_after,
        substr(text, greatest(place - :margin_before, 1),
            least(place - 1, :margin_before) + length(shown) + CAST(:margin_after AS integer)) AS around
    FROM unnest(CAST(:turns AS uuid[]), CAST(:words AS text[])) AS hit (turn_id, words)
    CROSS JOIN LATERAL (
        SELECT ('pg_catalog.' || language)::regconfig AS language
        FROM turns JOIN search_chats USING (chat_id) WHERE turns.id = hit.turn_id
    ) AS chat
    CROSS JOIN LATERAL (
        (
            SELECT text, word AS shown, strpos(lower(text), lower(word)) AS place
            FROM blocks CROSS JOIN unnest(string_to_array(hit.words, ' ')) WITH ORDINALITY AS word (word, number)
            WHERE turn_id = hit.turn_id AND type = ANY(CAST(:types AS text[])) AND strpos(lower(text), lower(word)) > 0
                AND NOT {IS_SEALED}
            ORDER BY number, index LIMIT 1
        )
        UNION ALL
        (
            SELECT text, token, strpos(lower(text), lower(token))
            FROM blocks CROSS JOIN LATERAL ts_parse('default', search_plain(left(text, 20000)))
            WHERE turn_id = hit.turn_id AND type = ANY(:types) AND strpos(lower(text), lower(token)) > 0
                AND NOT {IS_SEALED} AND EXISTS (
                SELECT FROM unnest(string_to_array(hit.words, ' ')) AS word
                WHERE to_tsvector(language, token) @@ plainto_tsquery(language, word)
            )
            ORDER BY index LIMIT 1
        )
        UNION ALL
        (
            SELECT text, '', 1 FROM blocks WHERE turn_id = hit.turn_id AND type = ANY(:types) AND NOT {IS_SEALED}
            ORDER BY index LIMIT 1
        )
        LIMIT 1
    ) AS found
    """,
    timeout=SEARCH_ANSWER_TIMEOUT,
)
INDEX_PENDING_OF = Statement("SELECT search_index_of(:owner, CAST(:most AS integer))")
GET_PENDING_OF = Statement("SELECT FROM search_pending WHERE owner = :owner AND refused IS NULL LIMIT 1")
GET_OLDEST_PENDING = Statement(
    """
    SELECT extract(epoch FROM clock_timestamp() - added_at)::float AS lag FROM search_pending
    WHERE refused IS NULL ORDER BY id LIMIT 1
    """
)
INDEX_PENDING = Statement("SELECT search_index_next(CAST(:most AS integer)) AS indexed", timeout=LONG)
CATCH_UP = Statement("SELECT search_catch_up(CAST(:most AS integer)) AS more", timeout=LONG)
CATCH_UP_DOCUMENTS = Statement("SELECT search_catch_up_documents(CAST(:most AS integer)) AS more", timeout=LONG)
COVER_SEGMENTS = Statement("SELECT search_cover_some(CAST(:after AS bigint)) AS last", timeout=LONG)
GET_SEARCH_SETTINGS = Statement("SELECT language, tool_results FROM search_owners WHERE owner = :owner")
# The sweep then indexes the texts of the owner's chats again. A database trigger marks the owner's documents for the
# same purpose.
PUT_SEARCH_SETTINGS = Statement(
    """
    WITH put AS (
        INSERT INTO search_owners (owner, language, tool_results) VALUES (:owner, :language, :tool_results)
        ON CONFLICT (owner) DO UPDATE SET language = EXCLUDED.language, tool_results = EXCLUDED.tool_results
        WHERE (search_owners.language, search_owners.tool_results)
            IS DISTINCT FROM (EXCLUDED.language, EXCLUDED.tool_results)
        RETURNING owner
    )
    INSERT INTO search_backlog (chat_id) SELECT chats.id FROM chats JOIN put USING (owner) ON CONFLICT DO NOTHING
    """,
    timeout=LONG,
)

# The name of a page: the window of a search, after an i if words are matched inside of other words, and the hit after
# which the search continues.
_TOKEN = re.compile("(i?)(-?[0-9]{1,19})(?:_([0-9]{1,4})_([0-9]{1,16})_([0-9a-f]{32}))?")
_TITLES = "t"  # precedes the name of a page that starts with encrypted titles
_SAID = ("text", "user_text")
_STEP = 100  # turns that are indexed at once
_DOCUMENTS = 10


@dataclass(frozen=True, slots=True)
class SearchPosition:
    """The position at which a search continues: in the window of segments from `first`, after the hit `behind` if it is
    set. When all chats with the beginnings of the words are found, words are matched inside of other words (`inside`).
    """

    first: int = NEWEST
    behind: tuple[int, datetime, UUID] | None = None
    inside: bool = False

    @property
    def page(self) -> str:
        window = f"{'i' if self.inside else ''}{self.first}"
        if self.behind is None:
            return window
        score, when, chat = self.behind
        return f"{window}_{score}_{microseconds_of(when)}_{chat.hex}"

    @staticmethod
    def of_page(name: str) -> "SearchPosition":
        """Returns the position that the name of a page contains. Raises NoSuchPage."""
        found = _TOKEN.fullmatch(name)
        if found is None or not -NEWEST <= int(found[2]) <= NEWEST:
            raise NoSuchPage
        behind = (int(found[3]), from_microseconds(int(found[4])), UUID(found[5])) if found[3] else None
        return SearchPosition(int(found[2]), behind, bool(found[1]))


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The settings for indexing an owner's texts. `language` is a text search configuration of Postgres; None is
    `simple`. A chat's language takes precedence.
    """

    language: str | None = None
    tool_results: bool = False


class IndexReads(TextSearch):
    """The reads of the search, which also work on a standby. `places` limits simultaneous searches."""

    def __init__(self, database: Database, places: Places) -> None:
        self._database = database
        self._places = places

    def on(self, database: Database) -> "IndexReads":
        return IndexReads(database, self._places)

    async def is_complete(self, owner: str) -> bool:
        return not await self._database.rows(GET_PENDING_OF, owner=owner)

    async def page(
        self, owner: str, words: Sequence[str], limit: int, before: str | None, only: SearchFilter
    ) -> tuple[Sequence[Hit], str | None]:
        of_titles = not before or before.startswith(_TITLES)
        behind = place_of_page(before[len(_TITLES) :]) if of_titles and before else None
        position = SearchPosition.of_page(before) if before and not of_titles else SearchPosition()
        async with self._places.one():
            await self._index_of(owner)
            async with limited(self._database) as connection:
                chats = (
                    await chats_by_sealed_title(connection, owner, words, limit + 1, only, behind) if of_titles else ()
                )
                titled = [Hit(chat, Excerpt(None, pieces_of(chat.title or "", words))) for chat in chats[:limit]]
                if len(chats) > limit:
                    return titled, f"{_TITLES}{page_behind(titled[-1].chat)}"
                if len(titled) == limit:
                    return titled, position.page
                rows, rest = await _page(connection, owner, words, limit - len(titled), position, only)
                hits = await _with_excerpts(connection, rows, words, only.tools)
        known = {hit.chat.id for hit in titled}
        return [*titled, *(hit for hit in hits if hit.chat.id not in known)], rest.page if rest else None

    async def documents(self, owner: str, words: Sequence[str], prefix: str, limit: int) -> Sequence[FoundDocument]:
        async with self._places.one(), limited(self._database) as connection:
            return await best_documents(connection, owner, words, prefix, limit)

    async def _index_of(self, owner: str) -> None:
        """Indexes no text, because a standby is read-only."""


class SearchIndex(IndexReads):
    def __init__(self, database: Database) -> None:
        super().__init__(database, Places())

    async def _index_of(self, owner: str) -> None:
        await self._database.row(INDEX_PENDING_OF, owner=owner, most=_PENDING)

    async def settings(self, owner: str) -> SearchSettings:
        row = await self._database.row(GET_SEARCH_SETTINGS, owner=owner)
        return SearchSettings(row["language"], row["tool_results"]) if row else SearchSettings()

    async def change_settings(self, owner: str, settings: SearchSettings) -> None:
        await self._database.rows(
            PUT_SEARCH_SETTINGS, owner=owner, language=settings.language, tool_results=settings.tool_results
        )

    async def lag(self) -> float | None:
        """Returns the seconds that the oldest unindexed text has waited, or None if all texts are indexed."""
        row = await self._database.row(GET_OLDEST_PENDING)
        return None if row is None else row["lag"]

    async def index(self) -> bool:
        """Indexes the oldest unindexed texts, unless another replica is doing so. Returns whether there may be more."""
        (row,) = await self._database.rows(INDEX_PENDING, most=_STEP)
        return bool(row["indexed"] == _STEP)

    async def catch_up(self) -> AsyncGenerator[int, None]:
        """Indexes unindexed or outdated texts and documents; then collects the words of segments. Yields 0 after each
        step, because no row is removed.
        """
        for statement, most in ((CATCH_UP, _STEP), (CATCH_UP_DOCUMENTS, _DOCUMENTS)):
            while (await self._database.rows(statement, most=most))[0]["more"]:
                yield 0
        covered = -NEWEST
        while (last := (await self._database.rows(COVER_SEGMENTS, after=covered))[0]["last"]) is not None:
            yield 0
            covered = last


async def _page(
    connection: Transaction,
    owner: str,
    words: Sequence[str],
    limit: int,
    position: SearchPosition,
    only: SearchFilter,
) -> tuple[Sequence[Row], SearchPosition | None]:
    hits: list[Row] = []
    for inside in _WINDOWS:
        if inside != position.inside:
            continue
        score, before, before_id = position.behind or (None, None, None)
        found = await connection.rows(
            SEARCH_INSIDE if inside else SEARCH_CHATS,
            owner=owner,
            first=position.first,
            words=words,
            tools=only.tools,
            since=only.since,
            until=only.until,
            only=only.chat,
            score=score,
            before=before,
            before_id=before_id,
            limit=limit - len(hits) + 1,
        )
        rest = next((row["rest"] for row in found if row["rest"] is not None), None)
        hits += [row for row in found if row["rest"] is None]
        if len(hits) > limit:
            last = hits[limit - 1]
            return hits[:limit], SearchPosition(position.first, (last["score"], last["updated_at"], last["id"]), inside)
        if rest is not None:
            position = SearchPosition(rest, inside=inside)
        elif inside:
            return hits, None
        else:
            position = SearchPosition(inside=True)
        if len(hits) == limit:
            break
    return hits, position


async def _with_excerpts(
    connection: Transaction, rows: Sequence[Row], words: Sequence[str], tools: bool
) -> Sequence[Hit]:
    in_texts = [row for row in rows if row["turn"] is not None]
    found = await connection.rows(
        GET_EXCERPTS,
        turns=[row["turn"] for row in in_texts],
        words=[" ".join(_shown(row["title"] or "", words)) for row in in_texts],
        types=[*_SAID, "tool_result"] if tools else _SAID,
        margin_before=BEFORE,
        margin_after=AFTER,
    )
    excerpts = {row["turn_id"]: row for row in found}
    hits = []
    for row in rows:
        line, marked = row["title"] or "", words
        if (excerpt := excerpts.get(row["turn"])) is not None:
            marked = [*words, excerpt["shown"]] if excerpt["shown"] else words
            line = excerpt_line(excerpt, marked)
        hits.append(Hit(chat_from(row), Excerpt(row["turn"], pieces_of(line, marked))))
    return hits


def _shown(title: str, words: Sequence[str]) -> Sequence[str]:
    """Returns the words for an excerpt: the longest first, but words that are in the title last."""
    return sorted(words, key=lambda word: (word.lower() in title.lower(), -len(word)))
