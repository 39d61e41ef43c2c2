"""Existing rows are encrypted in steps after the setting is switched on, and decrypted after it is switched off."""

import asyncio

import pytest
from click.testing import CliRunner

from tests.extensions.encryption.test_codec import GET_FILES, codec_of, stored
from tests.support.harness import Harness
from turnstream.cli import commands
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.encryption.old_contents import change_contents
from turnstream.extensions.search.index import CATCH_UP
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.contents import BYTES_MARK, TEXT_MARK
from turnstream.storage.database import Statement
from turnstream.storage.owners.uploads import Uploads

pytestmark = pytest.mark.extensions("documents", "encryption", "search")

GET_WORDS = Statement("SELECT words::text FROM search_texts UNION ALL SELECT text FROM blocks")


async def forms(harness: Harness) -> list[bool]:
    files = await harness.database.rows(GET_FILES, owner="ada")
    sealed = [row["content"].startswith(BYTES_MARK) for row in files]
    return [*sealed, *(text.startswith(TEXT_MARK) for text in await stored(harness))]


async def test_rows_get_the_form_of_the_setting_and_keep_their_contents(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.encryption.old_contents._STEP", 2)
    key, documents, uploads = new_master_key(), Documents(harness.database), Uploads(harness.database)
    files = [(await uploads.put("ada", "text/plain", bytes([n]) * 9, f"{n}.txt")).id for n in range(3)]
    for n in range(3):
        await documents.put("ada", f"{n}.md", f"Tide {n}.")
    sealing, plain = codec_of(harness, key), codec_of(harness, key, seals=False)
    async for step in change_contents(harness.database, sealing, sealed=True):
        assert (step.table, step.read, step.changed) == ("uploads", 2, 2)
        break  # here, the test interrupts the encryption
    assert await forms(harness) == [True, True, False, False, False, False]
    harness.database.codec = sealing
    # this upload has the same bytes, and its row is in plain text
    twin = await uploads.put("ada", "text/plain", bytes([2]) * 9)
    files.append(twin.id)
    for codec, sealed in ((sealing, True), (plain, False), (sealing, True)):
        steps = [step async for step in change_contents(harness.database, codec, sealed=sealed)]
        assert sum(step.left for step in steps) == 0
        assert await forms(harness) == [sealed] * 7
        again = [step async for step in change_contents(harness.database, codec, sealed=sealed)]
        assert sum(step.changed for step in again) == 0
        assert [(await documents.read("ada", f"{n}.md")) for n in range(3)] == ["Tide 0.", "Tide 1.", "Tide 2."]
        found = await uploads.describe("ada", files)
        assert [found[id].name for id in files] == ["0.txt", "1.txt", "2.txt", None]
        assert [(await uploads.contents(files))[id] for id in files] == [bytes([n]) * 9 for n in (0, 1, 2, 2)]
        hits = [hit.path for hit in await documents.search("ada", "tide", 5)]
        assert hits == ([] if sealed else ["0.md", "1.md", "2.md"])


async def test_words_of_messages_leave_the_index_and_come_back(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([message_of(text("Ebb and flow."))])) as replica:
        asked = await harness.ask("Tide.")
        before = await harness.finish(replica, asked)
    key, database = new_master_key(), harness.database
    sealing, plain = codec_of(harness, key), codec_of(harness, key, seals=False)
    for codec, sealed in ((sealing, True), (plain, False)):
        database.codec = codec
        steps = [step async for step in change_contents(database, codec, sealed=sealed)]
        assert [(step.table, step.changed, step.left) for step in steps] == [
            ("blocks", 2, 0),
            ("chats", 0, 0),
            ("turns", 0, 0),
        ]
        while (row := await database.row(CATCH_UP, most=50)) and row["more"]:
            pass
        rows = "".join(str(dict(row)) for row in await database.rows(GET_WORDS))
        assert ("'ebb'" in rows, "'tide'" in rows, "flow" in rows) == (not sealed,) * 3
        assert await harness.turn(asked) == before


async def test_owners_whose_key_is_lost_are_named(harness: Harness) -> None:
    documents = Documents(harness.database)
    harness.database.codec = codec_of(harness, new_master_key())
    await documents.put("bob", "a.md", "Tide.")
    plain = codec_of(harness, new_master_key(), seals=False)
    steps = [step async for step in change_contents(harness.database, plain, sealed=False)]
    assert [(step.table, step.changed, step.left, step.failed) for step in steps] == [
        ("documents", 0, 1, frozenset({"bob"}))
    ]


async def test_a_command_does_it(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await Documents(harness.database).put("ada", "a.md", "Tide.")
    monkeypatch.setenv("DATABASE_URL", harness.url)
    monkeypatch.setenv("TURNSTREAM_MASTER_KEY", new_master_key())
    monkeypatch.setenv("TURNSTREAM_ENCRYPT_TEXTS", "true")
    done = await asyncio.to_thread(CliRunner().invoke, commands, ["encryption", "apply"])
    assert done.exit_code == 0, done.output
    assert "documents: 1 rows read, 1 changed" in done.output
    (entry,) = await newest_entries(harness.database, None, "contents.", 1, 9)
    assert (entry.kind, entry.detail) == ("contents.encrypted", {"documents": 1})
    assert (await stored(harness))[0].startswith(TEXT_MARK)
