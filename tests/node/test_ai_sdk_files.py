"""Files in messages of `useChat`."""

import base64

import pytest

from tests.node.conftest import Json, Page

pytestmark = [pytest.mark.extensions("ai_sdk"), pytest.mark.asyncio(loop_scope="module")]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and more").decode()
TEXT = base64.b64encode("High at four, tschüß.".encode()).decode()
FILES = [
    {"type": "file", "mediaType": "image/png", "filename": "gauge.png", "url": f"data:image/png;base64,{PNG}"},
    {
        "type": "file",
        "mediaType": "text/markdown",
        "filename": "tide.md",
        "url": f"data:text/markdown;charset=utf-8;base64,{TEXT}",
    },
]


def files_in(message: Json) -> list[Json]:
    return [part for part in message["parts"] if part["type"] == "file"]


async def test_files_become_images_and_documents_and_are_sent_again_by_url(page: Page) -> None:
    await page.open()
    state = await page("send", text="plain", files=FILES)
    assert state["status"] == "ready", state["error"]
    question, _ = await page.stored()
    picture, paper = files_in(question)
    assert (picture["mediaType"], paper["mediaType"], paper["filename"]) == ("image/png", "text/plain", "tide.md")
    await page.open(messages=await page.stored())
    state = await page("send", text="tools", messageId=question["id"], files=[picture, paper])
    assert state["status"] == "ready", state["error"]
    again, _ = await page.stored()
    assert again["id"] != question["id"]
    assert files_in(again) == [picture, paper]
    await page.assert_shows_what_is_stored()


async def test_a_file_from_another_address_is_refused_with_a_sentence(page: Page) -> None:
    await page.open()
    elsewhere = {"type": "file", "mediaType": "image/png", "url": "https://example.org/gauge.png"}
    state = await page("send", text="plain", files=[elsewhere])
    assert state["status"] == "error"
    assert "the `url` of a file must be a data: URL in base64" in state["error"]
