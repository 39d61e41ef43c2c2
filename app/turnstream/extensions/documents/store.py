"""Stores the documents of owners, and searches their full text."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstream.domain.errors import StatementRefused
from turnstream.domain.limits import ReachedLimit
from turnstream.domain.plans import Plan
from turnstream.storage.contents import DOCUMENTS, TEXT_MARK, TEXT_SIZE
from turnstream.storage.database import Statement
from turnstream.storage.owners.documents import DocumentInfo, DocumentTexts

# If a document is encrypted, only its path can be searched.
PUT_DOCUMENT = Statement(
    f"""
    INSERT INTO documents (owner, path, content, searchable)
    VALUES (:owner, :path, :content, CASE WHEN starts_with(:content, '{TEXT_MARK}') THEN 0 ELSE :searchable END)
    ON CONFLICT (owner, path)
        DO UPDATE SET content = EXCLUDED.content, searchable = EXCLUDED.searchable, updated_at = now()
    RETURNING path, {TEXT_SIZE} AS size, updated_at, xmax = 0 AS created
    """,
    seals=[DOCUMENTS],
)
# The writes of one owner's documents run one after the other, so that two writes do not use the same free space.
LOCK_DOCUMENTS = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:owner, 36))")
# An encrypted document is stored in base64, so its size is multiplied by 3/4.
COUNT_OTHERS = Statement(
    f"""
    SELECT count(*) AS documents, coalesce(sum(
            octet_length(content) * CASE WHEN starts_with(content, '{TEXT_MARK}') THEN 3 ELSE 4 END / 4
        ), 0) AS document_bytes
    FROM documents WHERE owner = :owner AND path <> :path
    """
)
DELETE_DOCUMENT = Statement("DELETE FROM documents WHERE owner = :owner AND path = :path RETURNING path")
LIST_DOCUMENTS = Statement(
    f"""
    SELECT path, {TEXT_SIZE} AS size, updated_at FROM documents
    WHERE owner = :owner AND starts_with(path, :prefix) AND path COLLATE "C" > :after
    ORDER BY path COLLATE "C" LIMIT :limit
    """
)
# A document matches if it has any of the words, and ranks first if it has all words: a model's query should not exclude
# documents. Only the single words select the snippet: before PostgreSQL 16, a phrase of a hundred words keeps
# ts_headline busy for minutes.
SEARCH_DOCUMENTS = Statement(
    """
    WITH query AS (
        SELECT websearch_to_tsquery('english', :query) AS strict,
               replace(plainto_tsquery('english', :query)::text, '&', '|')::tsquery AS loose
    ), hits AS (
        SELECT path, left(content, searchable) AS content,
               (search @@ strict)::int * (1 + ts_rank_cd(search, strict, 32)) + ts_rank_cd(search, loose, 32) AS rank
        FROM documents, query
        WHERE owner = :owner AND search @@ (loose || strict)
        ORDER BY rank DESC, path LIMIT :limit
    )
    SELECT path, rank, ts_headline('english', content, loose,
        'StartSel="**", StopSel="**", MaxFragments=2, MaxWords=30, MinWords=10, FragmentDelimiter=" … "') AS snippet
    FROM hits, query ORDER BY rank DESC, path
    """
)

_EVERYTHING = 100_000
# The number of characters of a document that are made searchable at first. In most texts of this length, the words fit
# into a tsvector.
_SEARCHABLE = 600_000
_NO_LIMITS = Plan("none")
# The class of the Postgres errors for values that are too large, such as a tsvector of more than a megabyte.
_LIMIT_EXCEEDED = "54"


@dataclass(frozen=True, slots=True)
class DocumentHit:
    """A document that a search found. `snippet` has the words of the query in **bold**."""

    path: str
    rank: float
    snippet: str


class Documents(DocumentTexts):
    async def put(self, owner: str, path: str, content: str) -> tuple[DocumentInfo, bool]:
        """Writes a document. The returned flag is true if the document is new."""
        put = await self.put_within(owner, path, content, _NO_LIMITS)
        assert not isinstance(put, ReachedLimit)
        return put

    async def put_within(
        self, owner: str, path: str, content: str, plan: Plan
    ) -> tuple[DocumentInfo, bool] | ReachedLimit:
        """Writes a document, unless the owner's documents would then exceed a limit of the plan. Returns this
        limit if it would be exceeded.
        """
        return await self._put(owner, path, content, _SEARCHABLE, plan)

    async def _put(
        self, owner: str, path: str, content: str, searchable: int, plan: Plan
    ) -> tuple[DocumentInfo, bool] | ReachedLimit:
        """Writes a document. Halves the number of searchable characters until their words fit into a tsvector."""
        limits = (("documents", plan.documents, 1), ("document_bytes", plan.document_bytes, len(content.encode())))
        document = {"owner": owner, "path": path, "content": content, "searchable": searchable}
        try:
            if all(limit is None for _, limit, _ in limits):
                row = await self._database.row(PUT_DOCUMENT, **document)
            else:
                async with self._database.transaction() as connection:
                    await connection.row(LOCK_DOCUMENTS, owner=owner)
                    others = await connection.row(COUNT_OTHERS, owner=owner, path=path)
                    assert others is not None
                    for name, limit, size in limits:
                        if limit is not None and others[name] + size > limit:
                            return ReachedLimit(name, limit, int(others[name]))
                    row = await connection.row(PUT_DOCUMENT, **document)
        except StatementRefused as error:
            if not getattr(error.__cause__, "sqlstate", "").startswith(_LIMIT_EXCEEDED):
                raise
            return await self._put(owner, path, content, searchable // 2, plan)
        assert row is not None
        return DocumentInfo(row["path"], row["size"], row["updated_at"]), row["created"]

    async def tree(
        self, owner: str, prefix: str = "", *, after: str = "", limit: int = _EVERYTHING
    ) -> Sequence[DocumentInfo]:
        """Returns the documents whose path begins with `prefix`, sorted by path."""
        rows = await self._database.rows(LIST_DOCUMENTS, owner=owner, prefix=prefix, after=after, limit=limit)
        return [DocumentInfo(row["path"], row["size"], row["updated_at"]) for row in rows]

    async def delete(self, owner: str, path: str) -> bool:
        return await self._database.row(DELETE_DOCUMENT, owner=owner, path=path) is not None

    async def search(self, owner: str, query: str, limit: int) -> Sequence[DocumentHit]:
        """Returns the documents that match, with the best matches first."""
        rows = await self._database.rows(SEARCH_DOCUMENTS, owner=owner, query=query, limit=limit)
        return [DocumentHit(row["path"], row["rank"], row["snippet"]) for row in rows]
