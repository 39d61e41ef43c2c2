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
    """The match of a search: plain text in pieces, to be joined unchanged; the path if only the path matches."""

    pieces: list[PieceOut]


class ListedDocument(DocumentOut):
    excerpt: Annotated[DocumentExcerptOut | None, Field(description="of a search; null in a list of all documents")]


class DocumentPage(BaseModel):
    documents: list[ListedDocument]
    next: Annotated[str | None, Field(description="the `after` of the next page")]


class DocumentDeleted(BaseModel):
    deleted: str
