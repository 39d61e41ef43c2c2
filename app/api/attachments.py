"""What a user turn holds besides words: images and documents, as the rows keep them."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import assert_never
from uuid import UUID

import msgspec

from app.api.documents import checked_path
from app.api.schemas.blocks import Base64In, BlockIn, DocumentBlockIn, ImageBlockIn, PathIn, TextBlockIn, UploadIn
from app.api.services import Services
from app.domain.blocks import Block
from app.domain.errors import RequestRefused
from app.domain.kinds import DOCUMENT, IMAGE, TEXT
from app.domain.results import Part
from app.kit.media import IMAGES, PDF, PLAIN, media_type_of
from app.llm.models.catalog import Model
from app.storage.uploads import Upload

_DOCUMENTS = frozenset({PDF, PLAIN})


def spoken(blocks: Sequence[BlockIn]) -> tuple[Block, ...]:
    """What is said into a turn that runs: words alone."""
    for place, block in enumerate(blocks):
        if not isinstance(block, TextBlockIn):
            raise RequestRefused("a turn that runs takes text only", field=f"blocks.{place}.type")
    return tuple(Block(i, 0, 0, TEXT, b.text) for i, b in enumerate(blocks) if isinstance(b, TextBlockIn))


async def told(blocks: Sequence[BlockIn], owner: str, services: Services, field: str = "blocks") -> tuple[Block, ...]:
    """The blocks as those of a user turn. Bytes become uploads; a document of the library is kept as it is now."""
    return tuple([await _told(place, block, owner, services, field) for place, block in enumerate(blocks)])


def as_parts(blocks: Sequence[Block]) -> list[Part]:
    """The blocks as parts of a tool's result, without blanks. A document of the library is its words there."""
    parts: list[Part] = []
    for block in blocks:
        members = msgspec.json.decode(block.data or "{}")
        if members.get("source", {}).get("type") == "upload":
            parts.append(members)
        elif block.text.strip():
            parts.append(block.text)
    return parts


def check_attachments(model: Model, blocks: Sequence[Block]) -> None:
    """Raises RequestRefused for what the model cannot see."""
    for place, block in enumerate(blocks):
        if block.type == IMAGE and not model.does("images"):
            raise RequestRefused(f"{model.id} cannot see images", field=f"blocks.{place}.type")
        if block.type == DOCUMENT and not model.does("documents"):
            raise RequestRefused(f"{model.id} cannot read documents", field=f"blocks.{place}.type")


async def _told(place: int, block: BlockIn, owner: str, services: Services, field: str) -> Block:
    field = f"{field}.{place}.source"
    match block:
        case TextBlockIn():
            return Block(place, 0, 0, TEXT, block.text)
        case ImageBlockIn():
            upload = await _upload(block.source, owner, services, field, IMAGES)
            return _block(place, IMAGE, {"source": upload.source})
        case DocumentBlockIn():
            return await _document(place, block, owner, services, field)
        case _:
            assert_never(block)


async def _document(place: int, block: DocumentBlockIn, owner: str, services: Services, field: str) -> Block:
    if isinstance(block.source, PathIn):
        path = checked_path(block.source.path)
        text = await services.documents.read(owner, path)
        if text is None:
            raise RequestRefused(f"there is no document {path}", field=f"{field}.path")
        kept = {"type": "text", "media_type": PLAIN}
        return _block(place, DOCUMENT, {"title": block.title or path, "source": kept}, text)
    upload = await _upload(block.source, owner, services, field, _DOCUMENTS)
    title = {"title": block.title} if block.title else {}
    return _block(place, DOCUMENT, {**title, "source": upload.source})


def _block(place: int, type: str, members: Mapping[str, object], text: str = "") -> Block:
    return Block(place, 0, 0, type, text, msgspec.json.encode({"type": type, **members}).decode())


async def _upload(
    source: Base64In | UploadIn, owner: str, services: Services, field: str, wanted: frozenset[str]
) -> Upload:
    upload = await _found(source.id, owner, services, field) if isinstance(source, UploadIn) else None
    if upload is None:
        assert isinstance(source, Base64In)
        content = _decoded(source, services.max_upload_bytes, field)
        media_type = media_type_of(content)
        if source.media_type not in {None, media_type}:
            raise RequestRefused(f"the bytes are not {source.media_type}", field=f"{field}.media_type")
        if media_type in wanted:
            return await services.uploads.put(owner, media_type, content)
    elif upload.media_type in wanted:
        return upload
    raise RequestRefused(f"the bytes are none of: {', '.join(sorted(wanted))}", field=field)


async def _found(id: UUID, owner: str, services: Services, field: str) -> Upload:
    upload = (await services.uploads.describe(owner, [id])).get(id)
    if upload is None:
        raise RequestRefused(f"there is no upload {id}", field=f"{field}.id")
    return upload


def _decoded(source: Base64In, most: int, field: str) -> bytes:
    try:
        content = b64decode(source.data, validate=True)
    except (NotBase64, ValueError):
        raise RequestRefused("is not base64", field=f"{field}.data") from None
    if len(content) > most:
        raise RequestRefused(f"is larger than {most:,} bytes; upload less", field=f"{field}.data")
    return content
