"""Tests each row of the table of media types: the first bytes by which a type is detected, and the form of a file at
each provider, in each dialect and on the page.
"""

import json
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest

from tests.support.dialects import DIALECTS
from tests.support.renderers import RENDERERS
from tests.support.turns import turn_of
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import DOCUMENT, FILES, IMAGE
from turnstream.domain.media import MEDIA, PLAIN, MediaType, media_shown_as, media_type_of
from turnstream.extensions.ag_ui.messages import ClientIds, thread_messages
from turnstream.extensions.ag_ui.schemas import AgUiUserMessageIn
from turnstream.extensions.ag_ui.schemas import blocks_in as blocks_of_ag_ui
from turnstream.extensions.ai_sdk.messages import ui_message
from turnstream.extensions.ai_sdk.schemas import blocks_in as blocks_of_the_ai_sdk
from turnstream.extensions.anthropic_api.inputs import input_of
from turnstream.extensions.anthropic_api.schemas import MessageIn
from turnstream.extensions.mcp import offer_calls
from turnstream.extensions.openai_api.inputs import blocks_of as blocks_of_openai
from turnstream.extensions.openai_api.items import _part
from turnstream.extensions.openai_api.schemas import PartIn
from turnstream.kit.offload import Portions
from turnstream.llm.conversation.attachments import with_uploads
from turnstream.llm.models.catalog import NEEDED_ABILITY
from turnstream.llm.provider import Message, ModelRequest
from turnstream.tools.tool import File
from turnstream_terminal.blocks import block_of_upload

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "app/turnstream/web/static"
UPLOAD = UUID(int=1)
# An example file of each type. A new type needs an example here.
FILES_OF = {
    "image/png": b"\x89PNG\r\n\x1a\n...",
    "image/jpeg": b"\xff\xd8\xff\xe0...",
    "image/gif": b"GIF89a...",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    "application/pdf": b"%PDF-1.7",
    "text/plain": "Zwölf Boxkämpfer".encode(),
}

each_type = pytest.mark.parametrize("media", MEDIA.values(), ids=list(MEDIA))


@each_type
def test_the_first_bytes_of_a_file_decide_its_type(media: MediaType) -> None:
    assert media_type_of(FILES_OF[media.name]) == media


@pytest.mark.parametrize(
    "content",
    [b"RIFF\x00\x00\x00\x00WAVE", b"text with a \x00", b"\xff\xfe", b""],
    ids=["wave", "zero", "no text", "empty"],
)
def test_other_bytes_have_no_type(content: bytes) -> None:
    assert media_type_of(content) is None


def test_an_older_gif_is_one_too() -> None:
    assert media_type_of(b"GIF87a...") == MEDIA["image/gif"]


def block_of(media: MediaType) -> Block:
    source = {"type": "upload", "id": str(UPLOAD), "media_type": media.name}
    return Block(0, 0, 0, media.block, "", json.dumps({"type": media.block, "source": source}))


@each_type
def test_a_block_shows_it_that_needs_an_ability_of_the_model(media: MediaType) -> None:
    assert media.block in FILES
    assert media.block in NEEDED_ABILITY
    named = (STATIC / "texts.js").read_text(encoding="utf-8").partition("abilities: {")[2].partition("}")[0]
    assert f"{NEEDED_ABILITY[media.block]}:" in named, "the page shows the ability"


@pytest.mark.parametrize("api", RENDERERS)
@each_type
def test_each_provider_is_sent_its_content(media: MediaType, api: str) -> None:
    content = FILES_OF[media.name]
    messages = with_uploads([Message("user", (block_of(media),))], {UPLOAD: content})
    sent = json.dumps(json.loads(RENDERERS[api](ModelRequest("model", messages))), ensure_ascii=False)
    assert (content.decode() if media.is_text else b64encode(content).decode()) in sent
    assert media.is_text or media.name in sent


@each_type
async def test_the_ai_sdk_shows_it_as_a_file(media: MediaType) -> None:
    turn = replace(turn_of(), role="user", blocks=(block_of(media),))
    (part,) = (await ui_message(turn, "/api/uploads/", Portions())).parts
    assert (part["type"], part["mediaType"], part["url"]) == ("file", media.name, f"/api/uploads/{UPLOAD}")


@each_type
async def test_ag_ui_shows_it_by_its_address(media: MediaType) -> None:
    turn = replace(turn_of(), role="user", blocks=(block_of(media),))
    ((part,),) = [message["content"] for message in await thread_messages([turn], "/api/uploads/", ClientIds())]
    assert part["source"] == {"type": "url", "value": f"/api/uploads/{UPLOAD}", "mimeType": media.name}


Json = Mapping[str, Any]


def data_of(media: MediaType) -> str:
    return b64encode(FILES_OF[media.name]).decode()


def url_of(media: MediaType) -> str:
    return f"data:{media.name};base64,{data_of(media)}"


# The part of a message in which a client of OpenAI's APIs sends the file of a block. A new type of block needs its part
# in both APIs.
PARTS_OF_RESPONSES: Mapping[str, Callable[[str], Json]] = {
    IMAGE: lambda url: {"type": "input_image", "image_url": url},
    DOCUMENT: lambda url: {"type": "input_file", "filename": "a file", "file_data": url},
}
PARTS_OF_COMPLETIONS: Mapping[str, Callable[[str], Json]] = {
    IMAGE: lambda url: {"type": "image_url", "image_url": {"url": url}},
    DOCUMENT: lambda url: {"type": "file", "file": {"filename": "a file", "file_data": url}},
}


async def taken_by_the_ai_sdk(media: MediaType) -> Sequence[Json]:
    return blocks_of_the_ai_sdk([{"type": "file", "mediaType": media.name, "url": url_of(media)}])


async def taken_by_ag_ui(media: MediaType) -> Sequence[Json]:
    content = [{"type": media.block, "source": {"type": "data", "value": data_of(media), "mimeType": media.name}}]
    return blocks_of_ag_ui(AgUiUserMessageIn.model_validate({"id": "m", "role": "user", "content": content}))


async def taken_by_responses(media: MediaType) -> Sequence[Json]:
    return blocks_of_openai([PartIn.model_validate(PARTS_OF_RESPONSES[media.block](url_of(media)))], "input.0.content")


async def taken_by_completions(media: MediaType) -> Sequence[Json]:
    part = PartIn.model_validate(PARTS_OF_COMPLETIONS[media.block](url_of(media)))
    return blocks_of_openai([part], "messages.0.content")


async def taken_by_anthropic(media: MediaType) -> Sequence[Json]:
    source = {"type": "base64", "media_type": media.name, "data": data_of(media)}
    message = MessageIn.model_validate({"role": "user", "content": [{"type": media.block, "source": source}]})
    return (await input_of([message])).blocks


TAKEN: Mapping[str, Callable[[MediaType], Awaitable[Sequence[Json]]]] = {
    "ai_sdk": taken_by_the_ai_sdk,
    "ag_ui": taken_by_ag_ui,
    "openai_api": taken_by_responses,
    "openai_api, chat completions": taken_by_completions,
    "anthropic_api": taken_by_anthropic,
}


def test_each_dialect_takes_files() -> None:
    assert {name.partition(",")[0] for name in TAKEN} == DIALECTS.keys()


@pytest.mark.parametrize("dialect", TAKEN)
@each_type
async def test_each_dialect_takes_it_as_its_block(media: MediaType, dialect: str) -> None:
    (block,) = await TAKEN[dialect](media)
    assert (block["type"], block["source"]["data"]) == (media.block, data_of(media))


@each_type
def test_openai_has_it_among_the_items_of_a_conversation(media: MediaType) -> None:
    part = _part(block_of(media))
    assert part is not None
    assert part["file_id"] == str(UPLOAD)


@each_type
async def test_an_offer_of_an_mcp_server_sends_it_as_its_block(
    media: MediaType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_calls, "take_upload", AsyncMock(return_value=Mock(id=UPLOAD)))
    request: Any = None
    block = await offer_calls._block(request, File(FILES_OF[media.name]))
    assert block.type == media.block


@each_type
def test_the_terminal_sends_it_as_its_block(media: MediaType) -> None:
    assert block_of_upload({"id": str(UPLOAD), "media_type": media.name}, "a file")["type"] == media.block


def test_the_page_sends_each_type_as_its_block() -> None:
    script = (STATIC / "attachments.js").read_text(encoding="utf-8")
    images = re.search(r"^const IMAGES = \[(.*)\]$", script, re.MULTILINE)
    assert images is not None
    assert set(re.findall(r"'(.*?)'", images[1])) == media_shown_as(IMAGE)
    assert set(re.findall(r"{ type: '(\w+)', source", script)) == {media.block for media in MEDIA.values()}


def test_the_page_lets_people_choose_every_type() -> None:
    script = (STATIC / "attachments.js").read_text(encoding="utf-8")
    images = re.search(r"^const IMAGES = \[(.*)\]$", script, re.MULTILINE)
    documents = re.search(r"documents: '(.*)' }$", script, re.MULTILINE)
    assert images is not None
    assert documents is not None
    accepted = [*re.findall(r"'(.*?)'", images[1]), *documents[1].split(",")]
    assert [name for name in MEDIA if name not in accepted and f"{name.partition('/')[0]}/*" not in accepted] == []
    assert PLAIN in MEDIA


# The words for each type on the pages. A new type needs its word here.
WORDS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/webp": "WebP",
    "application/pdf": "PDF",
    "text/plain": "UTF-8 text",
}
# The beginnings of the lines that list the types, by page. In a result of a tool, the text of a file replaces the file.
ROWS = {"models.md": "A user turn may contain", "tools.md": "| returns a `File`"}


@pytest.mark.parametrize("page", ROWS)
@each_type
def test_the_pages_name_it(media: MediaType, page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(ROWS[page])]
    assert WORDS[media.name] in line or (media.is_text and page == "tools.md")
