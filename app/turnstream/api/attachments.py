"""Converts the blocks of a message (text, images and documents) to their stored form."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from turnstream.api.caller import CALLER
from turnstream.api.http.reading import check_path
from turnstream.api.schemas.blocks import (
    Base64In,
    BlockIn,
    DocumentBlockIn,
    ImageBlockIn,
    PathIn,
    TextBlockIn,
    UploadIn,
)
from turnstream.api.services import Services
from turnstream.domain.blocks import Block
from turnstream.domain.errors import Forbidden, RequestRefused, TooMany
from turnstream.domain.guards import Place
from turnstream.domain.kinds import DOCUMENT, IMAGE, TEXT
from turnstream.domain.media import PLAIN, media_shown_as, media_type_of
from turnstream.domain.results import ResultPart
from turnstream.llm.models.catalog import NEEDED_ABILITY, Model
from turnstream.storage.owners.uploads import Upload

UNTIL_DELETED = 60  # seconds of `Retry-After`: by then, the owner may have deleted something
_IMAGES, _DOCUMENTS = media_shown_as(IMAGE), media_shown_as(DOCUMENT)
# Most bytes of all files in one request, as many as providers accept in one request.
_MOST_FILE_BYTES = 32_000_000


@dataclass(slots=True)
class Contents:
    """Limits the contents of the blocks of one request, and reads each document of the library once. A short request
    can name large documents: each reference copies a document into the turn, and every reader receives the copy.
    """

    most_text: int
    documents: dict[str, str] = field(default_factory=dict)
    text: int = 0
    files: int = 0

    def add_text(self, text: str, field: str) -> None:
        """Counts a text. Raises RequestRefused if all texts together have more than `most_text` bytes."""
        self.text += len(text.encode())
        if self.text > self.most_text:
            detail = f"`{field}` must be shorter: the texts of a request, those of documents included, have at most"
            raise RequestRefused(f"{detail} {self.most_text:,} bytes.", field=field)

    def add_file(self, size: int, field: str) -> None:
        self.files += size
        if self.files > _MOST_FILE_BYTES:
            detail = f"`{field}` must be left out: the files of a request have at most {_MOST_FILE_BYTES:,} bytes."
            raise RequestRefused(detail, field=field)


async def allowed_blocks(blocks: Sequence[BlockIn], owner: str, services: Services) -> list[BlockIn]:
    """Passes texts of blocks through the guards, which may change the texts. Raises MessageBlocked and GuardFailed."""
    return [
        block.model_copy(update={"text": await allowed_text(block.text, owner, services)})
        if isinstance(block, TextBlockIn)
        else block
        for block in blocks
    ]


async def allowed_text(text: str, owner: str, services: Services, place: Place = "input") -> str:
    """Passes a text of a message, or a tool result of its history, through the guards. Returns the text to store."""
    check = services.live.check_message
    return text if check is None else await check(owner, CALLER.get().plan, text, place)


def steer_blocks(blocks: Sequence[BlockIn]) -> tuple[Block, ...]:
    """Returns the blocks of a message to a running turn. Raises RequestRefused for a block that is not text."""
    for place, block in enumerate(blocks):
        if not isinstance(block, TextBlockIn):
            raise RequestRefused(
                f"`blocks.{place}.type` must be `text`: a message to a running turn holds text only.",
                field=f"blocks.{place}.type",
            )
    return tuple(Block(i, 0, 0, TEXT, b.text) for i, b in enumerate(blocks) if isinstance(b, TextBlockIn))


async def user_blocks(
    blocks: Sequence[BlockIn],
    owner: str,
    services: Services,
    field: str = "blocks",
    contents: Contents | None = None,
) -> tuple[Block, ...]:
    """Returns the blocks of a user turn. Bytes become uploads; a library document is stored with its present text.
    `contents` counts the other blocks of the request. Raises RequestRefused, also if all blocks together are too large.
    """
    contents = contents or Contents(services.http.max_turn_bytes)
    return tuple(
        [await _block_of(place, block, owner, services, field, contents) for place, block in enumerate(blocks)]
    )


def result_parts(blocks: Sequence[Block]) -> list[ResultPart]:
    """Converts blocks to parts of a tool result, without blank texts. A document of the library becomes its text."""
    parts: list[ResultPart] = []
    for block in blocks:
        members = msgspec.json.decode(block.data or "{}")
        if members.get("source", {}).get("type") == "upload":
            parts.append(members)
        elif block.text.strip():
            parts.append(block.text)
    return parts


def check_attachments(model: Model, blocks: Sequence[Block]) -> None:
    """Raises RequestRefused for files that the model cannot read."""
    for place, block in enumerate(blocks):
        if (ability := NEEDED_ABILITY.get(block.type)) is not None and not model.supports(ability):
            field = f"blocks.{place}.type"
            raise RequestRefused(f"`{field}` must not be {block.type}: model {model.id} cannot read it.", field=field)


async def _block_of(
    place: int, block: BlockIn, owner: str, services: Services, field: str, contents: Contents
) -> Block:
    field = f"{field}.{place}.source"
    match block:
        case TextBlockIn():
            contents.add_text(block.text, field.replace(".source", ".text"))
            return Block(place, 0, 0, TEXT, block.text)
        case ImageBlockIn():
            upload = await _upload(block.source, owner, services, field, _IMAGES)
            contents.add_file(upload.size, field)
            return _block(place, IMAGE, {"source": upload.source})
        case DocumentBlockIn(source=PathIn(path=path)):
            check_path(path, f"{field}.path")
            reached = CALLER.get().documents
            if reached is None or not path.startswith(reached):
                detail = f"`{field}.path` must be left out: the token does not reach this document."
                raise Forbidden(detail, field=f"{field}.path")
            text = contents.documents.get(path) or await services.storage.documents.read(owner, path)
            if text is None:
                raise RequestRefused(
                    f"`{field}.path` must be the path of one of your documents; there is no document {path}.",
                    field=f"{field}.path",
                )
            contents.documents[path] = text
            contents.add_text(text, f"{field}.path")
            source = {"type": "text", "media_type": PLAIN}
            return _block(place, DOCUMENT, {"title": block.title or path, **_cited(block), "source": source}, text)
        case DocumentBlockIn():
            assert not isinstance(block.source, PathIn)
            upload = await _upload(block.source, owner, services, field, _DOCUMENTS)
            contents.add_file(upload.size, field)
            title = {"title": block.title} if block.title else {}
            return _block(place, DOCUMENT, {**title, **_cited(block), "source": upload.source})
        case _:
            assert_never(block)


def _cited(block: DocumentBlockIn) -> dict[str, object]:
    return {"cite": True} if block.cite else {}


def _block(place: int, type: str, members: Mapping[str, object], text: str = "") -> Block:
    return Block(place, 0, 0, type, text, msgspec.json.encode({"type": type, **members}).decode())


async def _upload(
    source: Base64In | UploadIn, owner: str, services: Services, field: str, allowed: frozenset[str]
) -> Upload:
    """Returns the upload that `source` names, or uploads its bytes. The bytes determine the media type."""
    uploads, kinds = services.storage.uploads, ", ".join(sorted(allowed))
    if isinstance(source, UploadIn):
        caller = CALLER.get()
        if caller.is_restricted and not await uploads.is_of_chat(caller.chat, caller.turn, source.id):
            detail = f"`{field}.id` must be an upload that the chat of the token shows, or that was made for this chat."
            raise Forbidden(detail, field=f"{field}.id")
        upload = (await uploads.describe(owner, [source.id])).get(source.id)
        if upload is None:
            detail = f"`{field}.id` must be the id of one of your uploads; there is no upload {source.id}."
            raise RequestRefused(detail, field=f"{field}.id")
        if upload.media_type in allowed:
            return upload
        raise RequestRefused(f"`{field}` must be one of {kinds}, not {upload.media_type}.", field=field)
    content = _decoded(source, services.http.max_upload_bytes, field)
    found = media_type_of(content)
    media_type = found.name if found else None
    if source.media_type not in {None, media_type}:
        detail = f"`{field}.media_type` must match the bytes, which are not {source.media_type}, or be left out."
        raise RequestRefused(detail, field=f"{field}.media_type")
    if media_type is not None and media_type in allowed:
        return await store_upload(services, owner, media_type, content)
    raise RequestRefused(f"`{field}` must hold the bytes of one of {kinds}.", field=field)


async def store_upload(
    services: Services,
    owner: str,
    media_type: str,
    content: bytes,
    name: str | None = None,
    purpose: str | None = None,
) -> Upload:
    """Stores a file. Raises TooMany if the owner's plan has no room for it."""
    plan = services.plans.of(owner)
    stored = await services.storage.uploads.put_within(owner, media_type, content, plan, name, purpose)
    if isinstance(stored, Upload):
        return stored
    what = "bytes of files" if stored.name == "upload_bytes" else "files"
    detail = f"The owner keeps {stored.used:,} {what}, and the limit `{stored.name}` of the plan is {stored.limit:,}."
    raise TooMany(f"{detail} Delete unneeded ones.", UNTIL_DELETED, stored.name)


def _decoded(source: Base64In, most: int, field: str) -> bytes:
    try:
        content = b64decode(source.data, validate=True)
    except (NotBase64, ValueError):
        raise RequestRefused(f"`{field}.data` must be base64.", field=f"{field}.data") from None
    if len(content) > most:
        detail = f"`{field}.data` must hold at most {most:,} bytes; send a smaller file."
        raise RequestRefused(detail, field=f"{field}.data")
    return content
