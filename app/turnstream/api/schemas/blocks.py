"""Request models of blocks: text, images and documents."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from turnstream.api.schemas.fields import Body, Storable, Title


class TextBlockIn(Body):
    type: Literal["text"]
    text: Annotated[Storable, Field(min_length=1)]


class Base64In(Body):
    """The bytes themselves. Their type is detected; a `media_type` that differs from it is refused."""

    type: Literal["base64"]
    data: Annotated[str, Field(min_length=1)]
    media_type: Storable | None = None


class UploadIn(Body):
    """A file that was uploaded before (POST /api/uploads)."""

    type: Literal["upload"]
    id: UUID


class PathIn(Body):
    """A document of the library. The turn keeps the text that the document has now."""

    type: Literal["path"]
    path: Storable


class ImageBlockIn(Body):
    type: Literal["image"]
    source: Annotated[Base64In | UploadIn, Field(discriminator="type")]


class DocumentBlockIn(Body):
    """A PDF or a text."""

    type: Literal["document"]
    source: Annotated[Base64In | UploadIn | PathIn, Field(discriminator="type")]
    title: Title | None = None
    cite: Annotated[
        bool, Field(description="whether the answer names its places in the document, as `citations` of its texts")
    ] = False


BlockIn = Annotated[TextBlockIn | ImageBlockIn | DocumentBlockIn, Field(discriminator="type")]
