"""Stored values: a value is encrypted for one row, may be stored beside plain values, and is decrypted only with its
owner's key.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from tests.support.harness import OWNER, Harness
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ClaimLost, Conflict
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import DELETED
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.encryption.codec import KEPT, SealingCodec
from turnstream.extensions.tool_results.rows import CachedResult, ToolCache
from turnstream.kit.ids import new_id
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.storage.chats.turns import Turns
from turnstream.storage.contents import (
    BYTES_ADDED,
    BYTES_MARK,
    DOCUMENTS,
    NEW_BLOCKS,
    OPEN_TEXT,
    TEXT_MARK,
    SealedColumns,
)
from turnstream.storage.database import Statement
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.rows import columns_of
from turnstream.storage.runs.queue import Queue
from turnstream.storage.runs.record import ADD_BLOCKS
from turnstream.storage.runs.snapshots import Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.mirror import Mirror

pytestmark = pytest.mark.extensions("documents", "encryption", "tool_results")

NOTES = SealedColumns("notes", ("id", "part"), {"text": "text", "data": "json"})
GET_TEXTS = Statement("SELECT content FROM documents WHERE owner = :owner ORDER BY path")
GET_FILES = Statement("SELECT id, digest, content, file_name FROM uploads WHERE owner = :owner ORDER BY id")
GET_CACHED_ROWS = Statement("SELECT content, client_data FROM tool_cache")
SWAP = Statement("UPDATE documents SET content = :content WHERE owner = :owner AND path = :path RETURNING path")


def codec_of(harness: Harness, key: str, *, seals: bool = True, required: bool = False) -> SealingCodec:
    return SealingCodec(OwnerKeys(harness.database, MasterKeys.read(key), required=required), seals=seals)


async def stored(harness: Harness, owner: str = "ada") -> list[str]:
    return [row["content"] for row in await harness.database.rows(GET_TEXTS, owner=owner)]


@pytest.mark.parametrize("text", ["", "Tide.", "été " * 100_000], ids=["empty", "short", "long"])
async def test_a_row_returns_its_plain_contents(harness: Harness, text: str) -> None:
    codec, place = codec_of(harness, new_master_key()), {"owner": "ada", "id": new_id(), "part": 3}
    plain: Mapping[str, Any] = {**place, "text": text, "data": '{"n": 1.0}', "other": "as it is"}
    sealed = await codec.seal(NOTES, plain)
    assert sealed["text"].startswith(f"{TEXT_MARK}{len(text)}:")
    assert sealed["data"].startswith(f'{{"sealed":"{TEXT_MARK}10:')
    assert {**sealed, "text": text, "data": plain["data"]} == plain
    assert await codec.seal(NOTES, plain) == sealed, "a write may be repeated"
    assert [*await codec.open(NOTES, {}, [sealed])] == [plain]


async def test_rows_of_several_owners_are_sealed_by_their_keys(harness: Harness) -> None:
    codec = codec_of(harness, new_master_key())
    turns = [(await harness.ask()).turn, new_id()]
    pieces = {"turn": turns, "attempt": [1, 1], "index": [0, 0], "start": [0, 4], "text": ["Tide", "Ebb"]}
    entry = OPEN_TEXT.named(turn_id="turn")
    sealed = await codec.seal(entry, pieces)
    rows = [dict(zip(sealed, row, strict=True)) for row in zip(*sealed.values(), strict=True)]
    assert all(row["text"].startswith(TEXT_MARK) for row in rows)
    assert [row["text"] for row in await codec.open(entry, {}, rows[:1])] == ["Tide"]
    with pytest.raises(Conflict):  # a turn that was deleted has no owner
        await codec.open(entry, {}, rows)
    with pytest.raises(ClaimLost):
        await codec.seal(NEW_BLOCKS, {"turn": turns[1], "indexes": [0], "texts": ["Ebb"]})


async def test_a_turn_that_cannot_be_decrypted_keeps_no_mirror_from_the_others(harness: Harness) -> None:
    bad, good = await harness.ask(), await harness.ask()
    directory = Directory()
    views = [directory.view(await harness.turn(each)) for each in (bad, good)]
    broken = columns_of([Block(0, 1, 1, TEXT, f"{TEXT_MARK}4:abcd")])
    await harness.database.rows(ADD_BLOCKS, turn=bad.turn, **broken)
    harness.database.codec = codec_of(harness, new_master_key())
    await Turns(harness.database).cancel(OWNER, good.chat, good.turn)
    await Mirror(Snapshots(harness.database), directory, 1).look()
    assert [view.ended for view in views] == [True, True]
    assert [view.turn.stop_reason == DELETED for view in views] == [True, False]


@pytest.mark.parametrize("changed", ["id", "part", "owner", "column", "table"])
async def test_a_moved_value_does_not_open(harness: Harness, changed: str) -> None:
    codec, contents = codec_of(harness, new_master_key()), NOTES
    sealed = await codec.seal(NOTES, {"owner": "ada", "id": new_id(), "part": 3, "text": "Tide.", "more": None})
    await codec.seal(NOTES, {"owner": "bob", "id": new_id(), "part": 3, "text": "Ebb."})
    match changed:
        case "table":
            contents = SealedColumns("others", NOTES.key, NOTES.columns)
        case "column":
            contents = SealedColumns("notes", NOTES.key, {"more": "text"}, {"more": "text"})
        case "owner":
            sealed["owner"] = "bob"
        case _:
            sealed[changed] = new_id()
    with pytest.raises(Conflict, match=r"Stored contents of (ada|bob) cannot be decrypted"):
        await codec.open(contents, {}, [sealed])


async def test_a_text_that_ends_too_early_does_not_open(harness: Harness) -> None:
    codec = codec_of(harness, new_master_key())
    sealed = await codec.seal(NOTES, {"owner": "ada", "id": new_id(), "part": 3, "text": "Tide."})
    for text in (sealed["text"][:-3], sealed["text"][:-8], TEXT_MARK, f"{TEXT_MARK}5:"):
        with pytest.raises(Conflict):
            await codec.open(NOTES, {}, [{**sealed, "text": text}])


async def test_plain_and_sealed_rows_are_beside_each_other(harness: Harness) -> None:
    documents, key = Documents(harness.database), new_master_key()
    await documents.put("ada", "a.md", "Tide.")
    harness.database.codec = codec_of(harness, key)
    await documents.put("ada", "b.md", "Ebb and flow.")
    harness.database.codec = codec_of(harness, key, seals=False)
    await documents.put("ada", "c.md", "Moon.")
    plain, sealed, last = await stored(harness)
    assert (plain, last) == ("Tide.", "Moon.")
    assert sealed.startswith(TEXT_MARK)
    assert [await documents.read("ada", f"{name}.md") for name in "abc"] == ["Tide.", "Ebb and flow.", "Moon."]
    assert [each.size for each in await documents.tree("ada")] == [5, 13, 5]


async def test_a_document_of_another_path_is_not_given_out(harness: Harness) -> None:
    documents = Documents(harness.database)
    harness.database.codec = codec_of(harness, new_master_key())
    await documents.put("ada", "mine.md", "Tide.")
    await documents.put("ada", "other.md", "Ebb.")
    await harness.database.rows(SWAP, owner="ada", path="other.md", content=(await stored(harness))[0])
    with pytest.raises(Conflict):
        await documents.read("ada", "other.md")


async def test_a_text_that_looks_sealed_is_a_text(harness: Harness) -> None:
    """If a plain text begins with the mark of encryption, the codec returns the text unchanged, even while encryption
    is off.
    """
    harness.database.codec = codec_of(harness, new_master_key(), seals=False)
    documents, uploads = Documents(harness.database), Uploads(harness.database)
    await documents.put("ada", "a.md", f"{TEXT_MARK}9:abc")
    upload = await uploads.put("ada", "image/png", BYTES_MARK + b"abc")
    assert await documents.read("ada", "a.md") == f"{TEXT_MARK}9:abc"
    assert await uploads.contents([upload.id]) == {upload.id: BYTES_MARK + b"abc"}
    assert upload.size == len(BYTES_MARK) + 3


async def test_equal_files_of_an_owner_are_one_and_of_two_owners_show_nothing(harness: Harness) -> None:
    harness.database.codec = codec_of(harness, new_master_key())
    uploads = Uploads(harness.database)
    first = await uploads.put("ada", "image/png", b"pixels", "a.png")
    again = await uploads.put("ada", "image/png", b"pixels", "b.png")
    await uploads.put("bob", "image/png", b"pixels", "a.png")
    assert (again.id, again.name, again.created, again.size) == (first.id, "b.png", False, 6)
    (ada,) = await harness.database.rows(GET_FILES, owner="ada")
    (bob,) = await harness.database.rows(GET_FILES, owner="bob")
    assert ada["digest"] != bob["digest"]
    assert len(ada["content"]) == 6 + BYTES_ADDED
    assert [(each.name, each.size) for each in (await uploads.describe("ada", [first.id])).values()] == [("b.png", 6)]
    assert await uploads.read("ada", first.id) == ("image/png", b"pixels")
    assert await uploads.contents([first.id, bob["id"]]) == {first.id: b"pixels", bob["id"]: b"pixels"}


async def test_a_cached_result_is_sealed_for_its_call(harness: Harness) -> None:
    harness.database.codec = codec_of(harness, new_master_key())
    cache, key = ToolCache(harness.database), bytes(32)
    await cache.put("ada", key, "weather", CachedResult("Rain.", {"mm": 1.5}), 60)
    (row,) = await harness.database.rows(GET_CACHED_ROWS)
    assert "Rain" not in str(row)
    assert row["content"].startswith(TEXT_MARK)
    found = await cache.get("ada", key)
    assert found is not None
    assert (found.text, found.client_data) == ("Rain.", {"mm": 1.5})


async def test_after_an_erasure_nothing_opens(harness: Harness) -> None:
    now = 0.0
    keys = OwnerKeys(harness.database, MasterKeys.read(new_master_key()))
    codec = SealingCodec(keys, seals=True, clock=lambda: now)
    sealed = await codec.seal(DOCUMENTS, {"owner": "ada", "path": "a.md", "content": "Tide."})
    await codec.seal(DOCUMENTS, {"owner": "bob", "path": "a.md", "content": "Tide."})
    async for _ in Owners(harness.database).erase("ada"):
        pass
    now += KEPT + 1
    for owner in ("ada", "bob"):
        with pytest.raises(Conflict, match=f"Stored contents of {owner} cannot be decrypted"):
            await codec.open(DOCUMENTS, {}, [{**sealed, "owner": owner}])
    await codec.seal(DOCUMENTS, {"owner": "ada", "path": "b.md", "content": "A new key."})
    with pytest.raises(Conflict):
        await codec.open(DOCUMENTS, {}, [sealed])


async def test_without_the_master_key_the_answer_says_so(harness: Harness) -> None:
    sealed = await codec_of(harness, new_master_key()).seal(
        DOCUMENTS, {"owner": "ada", "path": "a.md", "content": "Tide."}
    )
    lacks = r"wrapped by the master key [0-9a-f]{16}, which this server lacks"
    codec = codec_of(harness, new_master_key())
    with pytest.raises(Conflict, match=lacks):
        await codec.open(DOCUMENTS, {}, [sealed])
    with pytest.raises(Conflict, match=lacks):
        await codec.seal(DOCUMENTS, sealed)


async def test_nothing_is_sealed_while_a_live_replica_cannot_open_it(harness: Harness) -> None:
    now, key, sessions = 0.0, new_master_key(), count(1)
    masters = MasterKeys.read(key)
    codec = SealingCodec(OwnerKeys(harness.database, masters), seals=True, clock=lambda: now)
    plain = {"owner": "ada", "path": "a.md", "content": "Tide."}

    def queue(address: str, *extensions: str) -> Queue:
        session = next(sessions)
        return Queue(
            harness.database, new_id(), address, session=session, extensions=extensions, master_keys=masters.ids
        )

    await queue("new", "keys", "encryption").renew_lease(60)
    other = queue("other", "keys")
    await other.renew_lease(60)
    assert await codec.seal(DOCUMENTS, plain) == plain
    with pytest.raises(Conflict, match="while the replica other lacks the master key or the extension"):
        await codec_of(harness, key, required=True).seal(DOCUMENTS, plain)
    await other.leave()
    assert await codec.seal(DOCUMENTS, plain) == plain, "the last look is used for a while"
    now += KEPT + 1
    assert (await codec.seal(DOCUMENTS, plain))["content"].startswith(TEXT_MARK)


async def test_many_owners_have_few_keys_in_memory(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.encryption.codec._MOST", 2)
    codec = codec_of(harness, new_master_key())
    for owner in ("ada", "bob", "cy"):
        sealed = await codec.seal(DOCUMENTS, {"owner": owner, "path": "a.md", "content": owner})
        assert (await codec.open(DOCUMENTS, {}, [sealed]))[0]["content"] == owner
    assert codec.owners_in_memory == 2
