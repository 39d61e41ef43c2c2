"""The texts of documents that messages may name. The extension `documents` writes, lists and searches documents."""

from dataclasses import dataclass
from datetime import datetime

from turnstream.storage.contents import DOCUMENTS
from turnstream.storage.database import Database, Statement

GET_DOCUMENT = Statement(
    "SELECT path, content, updated_at FROM documents WHERE owner = :owner AND path = :path", opens=[DOCUMENTS]
)


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document without its content. `size` counts characters."""

    path: str
    size: int
    updated_at: datetime


class DocumentTexts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, owner: str, path: str) -> str | None:
        row = await self._database.row(GET_DOCUMENT, owner=owner, path=path)
        return row["content"] if row else None
