"""Bodies of the responses about documents."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from turnstream.api.schemas.responses import PieceOut


class DocumentOut(BaseModel):
    path: str
    size: Annotated[int, Field(description="characters")]
    updated_at: datetime


class DocumentExcerptOut(BaseModel):
    """The part of a document that matches a search: plain text in pieces, which must be joined unchanged. If only the
    path matches, the excerpt is the path.
    """

    pieces: list[PieceOut]


class ListedDocument(DocumentOut):
    excerpt: Annotated[DocumentExcerptOut | None, Field(description="of a search; null in a list of all documents")]


class DocumentPage(BaseModel):
    documents: list[ListedDocument]
    next: Annotated[str | None, Field(description="the `after` of the next page")]


class DocumentDeleted(BaseModel):
    deleted: str
