"""Tools that return images and documents: their rows, the request to the model, and the uploads."""

import json
from base64 import b64encode
from typing import Any

import pytest

from tests.support.harness import OWNER, TICK, Harness, results_of
from tests.support.pictures import PIXEL
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.results import parts_of
from turnstream.domain.turns import Turn
from turnstream.extensions.retention.unused import unused_uploads
from turnstream.llm.conversation.attachments import GONE, LEFT_OUT
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.chats import Chats
from turnstream.storage.owners.uploads import Uploads
from turnstream.tools.running.fit import MOST_FILES
from turnstream.tools.tool import File, Outcome, Tool, tool
from turnstream.tools.toolset import Toolset

PDF = b"%PDF-1.7 not really"


@tool(read_only=True, memo=True)
async def look() -> list[str | File]:
    """Look at something."""
    return ["Before:", File(PIXEL), "", "After: é", " \n", File(PDF)]


@tool()
async def shoot() -> File:
    """Make a picture."""
    return File(PIXEL)


def calls(*names: str) -> Reply:
    return message_of(*(tool_use(name, {}, f"toolu_{place}") for place, name in enumerate(names)))


def answer() -> Reply:
    return message_of(text("I see."))


async def run(harness: Harness, provider: ScriptedProvider, *tools: Tool, **options: Any) -> Turn:
    async with harness.replica(provider, tools, **options) as replica:
        return await harness.finish(replica, await harness.ask(tools=tools))


def sent(request: ModelRequest) -> list[Block]:
    return [block for message in request.messages for block in message.blocks if block.type == "tool_result"]


def inline(content: bytes, media_type: str) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": b64encode(content).decode()}


async def test_files_are_sent_in_their_places_and_the_row_names_them(harness: Harness) -> None:
    provider = ScriptedProvider([calls("look"), answer()])
    (result,) = results_of(await run(harness, provider, look)).values()
    assert result.text == "Before:\nAfter: é"
    before, image, after, pdf = json.loads(result.data or "")["content"]
    assert (before, after) == ({"type": "text", "length": 7}, {"type": "text", "length": 8})
    assert [file["type"] for file in (image, pdf)] == ["image", "document"]
    assert [file["source"]["media_type"] for file in (image, pdf)] == ["image/png", "application/pdf"]
    assert await Uploads(harness.database).read(OWNER, image["source"]["id"]) == ("image/png", PIXEL)
    (result,) = sent(provider.requests[1])
    assert parts_of(result) == [
        {"type": "text", "text": "Before:"},
        {"type": "image", "source": inline(PIXEL, "image/png")},
        {"type": "text", "text": "After: é"},
        {"type": "document", "source": inline(PDF, "application/pdf")},
    ]


async def test_a_result_may_be_nothing_but_a_picture_and_the_same_bytes_are_stored_once(harness: Harness) -> None:
    turn = await run(harness, ScriptedProvider([calls("shoot", "shoot"), answer()]), shoot)
    first, second = results_of(turn).values()
    assert (first.text, first.is_error) == ("", False)
    assert first.data == second.data


async def test_paths_in_memory_have_their_files_too(harness: Harness) -> None:
    provider = ScriptedProvider([calls("look", "look"), calls("look"), answer()])
    turn = await run(harness, provider, look)
    results = [block for block in turn.blocks if block.type == "tool_result"]
    assert [bool(json.loads(block.notes or "")["memo"]) for block in results[1:] if block.notes] == [True, True]
    assert len({block.data for block in results}) == 1
    assert all(len(parts_of(block)) == 4 for block in sent(provider.requests[2]))


async def test_later_turns_say_the_same_and_a_file_that_is_gone_is_said_to_be(harness: Harness) -> None:
    provider = ScriptedProvider([calls("shoot"), answer(), answer(), answer()])
    async with harness.replica(provider, [shoot]) as replica:
        asked = await harness.ask(tools=[shoot])
        turn = await harness.finish(replica, asked)
        await harness.finish(replica, second := await harness.ask("And?", after=asked, tools=[shoot]))
        (result,) = results_of(turn).values()
        (upload,) = (part["source"]["id"] for part in parts_of(result))
        assert await Uploads(harness.database).delete(OWNER, upload)
        await harness.finish(replica, await harness.ask("Now?", after=second, tools=[shoot]))
    before, after, gone = (request.messages[:3] for request in provider.requests[1:])
    assert before == after
    assert parts_of(gone[2].blocks[0]) == [{"type": "text", "text": GONE}]


async def test_the_content_of_a_result_is_kept_until_its_chat_is_deleted(harness: Harness) -> None:
    turn = await run(harness, ScriptedProvider([calls("shoot"), answer()]), shoot)
    uploads = Uploads(harness.database)
    (result,) = results_of(turn).values()
    (upload,) = (part["source"]["id"] for part in parts_of(result))
    assert await swept(unused_uploads(harness.database, 0)) == 0
    assert not await uploads.delete(OWNER, upload, only_unused=True)
    await Chats(harness.database).delete(OWNER, turn.chat_id)
    assert await swept(unused_uploads(harness.database, 0)) == 1


@tool()
async def mixed() -> Outcome:
    """Returns a file of an unknown type, and a file that is too large."""
    more = [File(b"\0\1", "audio/wav"), File("Grüße\0".encode()), File("Grüße".encode()), File(PIXEL + bytes(2000))]
    return Outcome("Here:", more=(*more, *[File(PIXEL + bytes([n])) for n in range(MOST_FILES + 1)]))


async def test_a_file_of_an_unknown_kind_is_described_in_words(harness: Harness) -> None:
    toolset = Toolset([mixed], max_file_bytes=2000, patience=TICK)
    turn = await run(harness, ScriptedProvider([calls("mixed"), answer()]), mixed, toolset=toolset)
    (result,) = results_of(turn).values()
    assert result.text.splitlines() == [
        "Here:",
        "[audio/wav, 2 bytes: neither an image nor a PDF that can be shown]",
        "[file, 8 bytes: neither an image nor a PDF that can be shown]",
        "Grüße",
        f"[image/png, {len(PIXEL) + 2000:,} bytes: too large to be shown]",
        f"[image/png, {len(PIXEL) + 1} bytes: left out, since there are too many]",
    ]
    assert sum(part["type"] == "image" for part in parts_of(result)) == MOST_FILES


@tool(max_result_chars=100)
async def talk() -> list[str | File]:
    """Returns a text that is cut, around a picture."""
    return ["a" * 90, File(PIXEL), "b" * 90]


async def test_a_result_that_is_cut_has_its_words_before_its_files(harness: Harness) -> None:
    turn = await run(harness, ScriptedProvider([calls("talk"), answer()]), talk)
    (result,) = results_of(turn).values()
    words, picture = parts_of(result)
    assert words["text"].startswith(
        "a" * 90 + "\n" + "b" * 9 + "\n\n[The result was cut here: 81 of its 181 characters"
    )
    assert picture["type"] == "image"


@pytest.mark.parametrize("can", [frozenset({"tools", "documents"}), frozenset({"tools", "images"})])
async def test_a_model_gets_words_for_files_that_it_cannot_see(harness: Harness, can: frozenset[str]) -> None:
    provider = ScriptedProvider([calls("look"), answer()])
    models = Models([ProviderModels(provider, [Model("scripted", can=can)])])
    async with harness.replica(models.provider_for, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    (result,) = sent(provider.requests[1])
    unseen = "image" if "documents" in can else "document"
    texts = [part["text"] for part in parts_of(result) if part["type"] == "text"]
    assert LEFT_OUT.format(type=unseen) in texts
    assert len(texts) == 3
    (result,) = results_of(turn).values()
    assert len(parts_of(result)) == 4, "the row knows all of it"
