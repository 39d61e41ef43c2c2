"""Exports, imports and erases everything of an owner. Each operation is interrupted at any step, and then resumed."""

import asyncio
import io
import json
import os
import tarfile
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from tests.support.harness import OWNER, Asked, Harness
from tests.support.http_server import pausing
from tests.support.owner_rows import HELLO, fill_owner, rows_of
from turnstream.cli import commands
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.secret_headers import MASK
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.archives.archives import OwnerExport
from turnstream.extensions.archives.commands import _export, _import
from turnstream.extensions.archives.tar import END, tar_member, tar_members
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.extensions.schedules.trigger_store import TriggerRule
from turnstream.kit.ids import new_id
from turnstream.scripted import Pause, ScriptedProvider
from turnstream.storage.chats.chats import Chats
from turnstream.storage.owners.uploads import Uploads


@pytest.fixture(autouse=True)
def no_token_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cache of tokens, so that an erasure need not wait for it: most of these tests run no server."""
    monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)


@pytest.fixture
async def asked(harness: Harness, tmp_path: Path) -> Asked:
    second = await fill_owner(harness)
    recordings = tmp_path / "recordings" / str(second.turn)
    recordings.mkdir(parents=True)
    (recordings / "attempt-001-round-001-try-01.jsonl").write_text('{"recorded": 1}\n')
    return second


@pytest.fixture
def settings(harness: Harness, tmp_path: Path) -> Settings:
    return Settings(_env_file=None, database_url=harness.url, record=tmp_path / "recordings")


def _names(archive: bytes) -> list[str]:
    return tarfile.open(fileobj=io.BytesIO(archive)).getnames()


LEFT_OUT = (
    *("audit", "erasures", "tokens", "charges", "tool_cache", "webhooks", "open_text", "deleted_chats", "replicas"),
    *("token_requirement", "search_segments", "search_chats", "search_texts", "search_pending"),
    *("sign_ins", "shares", "stopped_jobs"),  # An archive contains no secrets.
    "chat_members",  # The owners of the chats decide who their members are.
    # rows of turns have digests of tool sets, and an archive has the tools themselves
    *("search_documents", "tool_sets"),
)


async def test_an_archive_restores_an_erased_owner(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    before = await rows_of(harness.url, without=LEFT_OUT)
    kinds = {"documents", "uploads", "chats", "turns", "rounds", "blocks", "tool_calls", "asks", "steers", "grants"}
    assert before.keys() == kinds | {"idempotency_keys"}
    await _export(settings, OWNER, tmp_path / "ada.tar", None)
    await _erase(settings, OWNER)
    assert not any((tmp_path / "recordings").iterdir())
    counts = await _import(settings, tmp_path / "ada.tar", None, trusted=True)
    assert counts.made == {"documents": 1, "uploads": 1, "chats": 2, "recordings": 1}
    assert counts.whole
    # An archive loses only the line breaks between two tokens of JSON.
    whole = {table: [row.replace("\r\n", "  ") for row in rows] for table, rows in before.items()}
    assert await rows_of(harness.url, without=LEFT_OUT) == whole
    await _export(settings, OWNER, tmp_path / "again.tar", None)
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "ada.tar").read_bytes()


async def test_the_trigger_of_a_chat_is_restored_paused_and_without_its_secrets(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    del asked
    connection = await asyncpg.connect(harness.url)
    try:
        await connection.execute(
            "INSERT INTO schedules (id, owner, name, chat_id, request, trigger, zone, missed, grace, next_at)"
            " SELECT gen_random_uuid(), owner, 'reports', id, '{}', $1, 'UTC', 'skip', 1, 'infinity'"
            " FROM chats LIMIT 1",
            '{"secrets": {"a": "whsec_c2VjcmV0"}, "until": {}, "body": "data", "per_minute": 60}',
        )
        await _export(settings, OWNER, tmp_path / "ada.tar", None)
        assert b"whsec" not in (tmp_path / "ada.tar").read_bytes()
        await _erase(settings, OWNER)
        assert await connection.fetchval("SELECT count(*) FROM schedules") == 0
        await _import(settings, tmp_path / "ada.tar", None, trusted=True)
        restored = await connection.fetchrow("SELECT paused, trigger::text, next_at::text AS next FROM schedules")
    finally:
        await connection.close()
    assert restored is not None
    assert restored["paused"] == "person"
    assert restored["next"] == "infinity"
    assert "secrets" not in restored["trigger"]
    assert TriggerRule.read(restored["trigger"]).valid(0) == {}


async def test_a_document_is_restored_whatever_ends_a_line_in_it(
    harness: Harness, settings: Settings, tmp_path: Path
) -> None:
    words = "1\n2\r\n3\u20284\u20295\x856\x0b7\x0c8\x1c9"
    await Documents(harness.database).put(OWNER, "notes/lines.md", words)
    await _export(settings, OWNER, tmp_path / "ada.tar", None)
    await _erase(settings, OWNER)
    await _import(settings, tmp_path / "ada.tar", None)
    assert await Documents(harness.database).read(OWNER, "notes/lines.md") == words


async def test_an_export_that_was_cut_off_anywhere_is_continued(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    archive = tmp_path / "ada.tar"
    await _export(settings, OWNER, archive, None)
    whole = archive.read_bytes()
    assert len(_names(whole)) > 15
    for length in range(0, len(whole) - 1024, 700):
        archive.write_bytes(whole[:length])
        if 0 < length < 512:
            with pytest.raises(ConfigError, match="is no archive"):
                await _export(settings, OWNER, archive, None)
            continue
        await _export(settings, OWNER, archive, None)
        assert archive.read_bytes() == whole, length
    with pytest.raises(ConfigError, match="is a whole archive; name another file"):
        await _export(settings, OWNER, archive, None)
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="is no archive of this owner"):
        await _export(settings, "other", archive, None)
    archive.write_bytes(b"a letter")
    with pytest.raises(ConfigError, match="is no archive of this owner"):
        await _export(settings, OWNER, archive, None)


async def test_an_import_that_was_cut_off_anywhere_is_repeated(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    archive, part = tmp_path / "ada.tar", tmp_path / "part.tar"
    await _export(settings, OWNER, archive, None)
    whole = archive.read_bytes()
    before = await rows_of(harness.url, without=LEFT_OUT)
    stored = 0
    for length in range(4000, whole.rindex(b"end.json"), 4000):
        await _erase(settings, OWNER)
        part.write_bytes(whole[:length])
        counts = await _import(settings, part, None, trusted=True)
        assert not counts.whole
        again = await _import(settings, archive, None, trusted=True)
        assert again.whole
        assert {kind: counts.made[kind] + again.made[kind] for kind in ("documents", "uploads")} == {
            "documents": 1,
            "uploads": 1,
        }
        now = await rows_of(harness.url, without=LEFT_OUT)
        assert {name: len(rows) for name, rows in now.items()} == {name: len(rows) for name, rows in before.items()}
        stored += counts.made["chats"]
    assert stored > 1  # some archives were interrupted after a complete chat


async def test_ids_that_another_owner_has_are_new(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    await _export(settings, OWNER, tmp_path / "ada.tar", None)
    counts = await _import(settings, tmp_path / "ada.tar", "bob", trusted=True)
    assert counts.made == {"documents": 1, "uploads": 1, "chats": 2, "recordings": 1}
    moved = counts.moved[asked.chat]
    await _export(settings, "bob", tmp_path / "bob.tar", None)
    # the second import finds all rows in place
    assert (await _import(settings, tmp_path / "ada.tar", "bob")).made["chats"] == 0
    async with harness.locker() as locker:
        fetch = locker.connection.fetch
        (upload,) = await fetch("SELECT id FROM uploads WHERE owner = 'bob'")
        blocks = await fetch(
            "SELECT type, text, data FROM blocks JOIN turns ON turns.id = turn_id WHERE chat_id = $1"
            " ORDER BY created_at, turns.id, index",
            moved,
        )
        assert [block["text"] for block in blocks] == ["Hello", "Hello.", "And again?", "Hello.", ""]
        assert str(upload["id"]) in blocks[-1]["data"]
        (grant,) = await fetch("SELECT turn_id FROM grants WHERE chat_id = $1", moved)
        assert await fetch("SELECT FROM turns WHERE id = $1 AND chat_id = $2", grant["turn_id"], moved)
    await _erase(settings, "bob")
    assert len((await rows_of(harness.url))["chats"]) == 2
    assert (await harness.turn(asked)).blocks[0].text == "Hello."


async def test_open_turns_are_cancelled_by_an_import_and_cost_nothing(
    harness: Harness, settings: Settings, tmp_path: Path
) -> None:
    provider, pause = ScriptedProvider(lambda _: pausing(pause, "One ", "two.")), Pause()
    async with harness.replica(provider) as replica:
        running = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        queued = await harness.ask("Later")
        await _export(settings, OWNER, tmp_path / "ada.tar", None)
        pause.go.set()
        await harness.follow(replica, running)
        await replica.idle(running)
    calls = len(provider.requests)
    await _erase(settings, OWNER)
    await _import(settings, tmp_path / "ada.tar", None)
    async with harness.replica(provider) as replica:
        for asked in (running, queued):
            assert (await harness.finish(replica, asked)).status == "cancelled"
    assert len(provider.requests) == calls


async def test_one_chat_is_exported_with_its_uploads(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    await Uploads(harness.database).put(OWNER, "text/plain", b"of no chat")
    await _export(settings, OWNER, tmp_path / "chat.tar", asked.chat)
    await _erase(settings, OWNER)
    counts = await _import(settings, tmp_path / "chat.tar", None)
    assert counts.made == {"documents": 0, "uploads": 1, "chats": 1, "recordings": 1}
    assert len((await harness.turn(asked)).blocks) == 2


async def test_an_archive_reaches_no_other_chat(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    await _export(settings, OWNER, tmp_path / "ada.tar", None)
    await _erase(settings, OWNER)
    async with harness.replica(HELLO) as replica:
        others = await harness.ask()
        await harness.finish(replica, others)
    files = ("documents", "search_documents", "uploads")
    before = await rows_of(harness.url, without=files)
    forged = tmp_path / "forged.tar"
    content = (tmp_path / "ada.tar").read_bytes()
    for table in ("turns", "blocks", "grants"):
        parts = [*tar_members(io.BytesIO(content))]
        changed = [
            (name, data.replace(str(mine).encode(), str(theirs).encode()) if f"-{table}-" in name else data)
            for name, data in parts
            for mine, theirs in [(asked.turn, others.turn) if table == "blocks" else (asked.chat, others.chat)]
        ]
        forged.write_bytes(b"".join(tar_member(*each) for each in changed) + END)
        with pytest.raises(ConfigError, match=f"a row of {table} is not of this chat"):
            await _import(settings, forged, None, trusted=True)
        assert await rows_of(harness.url, without=files) == before


async def test_other_files_are_refused(settings: Settings, tmp_path: Path) -> None:
    head = b'{"format":"turnstream","version":%d,"owner":"a","columns":{%s}}'
    for content, reason in (
        (b"", "must begin with archive.json"),
        (b"x" * 2000, "must begin with archive.json"),
        (tar_member("archive.json", b"{}"), "is no archive of turnstream"),
        (tar_member("archive.json", head % (2, b"")), "newer turnstream"),
        (tar_member("archive.json", head.replace(b'"a"', b'"a (arriving)"') % (1, b"")), "cannot be an owner here"),
        (tar_member("archive.json", head % (1, b'"chats":["mood"]')), "chats.mood"),
        (tar_member("archive.json", head % (1, b'"moods":[]')), "with moods"),
        (tar_member("archive.json", head % (1, b"")) + tar_member("documents/1.jsonl", b"{}"), "cannot be stored"),
        (tar_member("archive.json", head % (1, b"")) + tar_member(f"chats/{new_id()}/1", b"{}"), "cannot be stored"),
    ):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ConfigError, match=reason):
            await _import(settings, tmp_path / "file", None)


async def test_settings_that_the_api_would_not_take_are_not_imported(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    await _export(settings, OWNER, tmp_path / "ada.tar", None)
    await _erase(settings, OWNER)
    content = (tmp_path / "ada.tar").read_bytes()
    parts = [*tar_members(io.BytesIO(content))]
    for forged in ({"tools": 5}, {"limits": {"max_rounds": -1}}, {"unknown": 1}):
        changed = [
            (name, json.dumps({**json.loads(data), "settings": forged}).encode() if "-chats-" in name else data)
            for name, data in parts
        ]
        (tmp_path / "forged.tar").write_bytes(b"".join(tar_member(*each) for each in changed) + END)
        with pytest.raises(ConfigError, match="cannot be stored"):
            await _import(settings, tmp_path / "forged.tar", None)
    assert "chats" not in await rows_of(harness.url)


async def test_approvals_and_grants_of_an_archive_count_only_if_it_is_trusted(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    answered = "SELECT count(*) FROM asks WHERE answer IS NOT NULL"
    async with harness.locker() as locker:
        await locker.connection.execute(
            """UPDATE asks SET kind = 'approval', answer = '{"kind": "approve"}', answered_at = now()"""
        )
        await locker.connection.execute(
            "UPDATE turns SET status = 'waiting', ended_at = NULL, stop_reason = NULL"
            " WHERE id IN (SELECT turn_id FROM asks)"
        )
        await _export(settings, OWNER, tmp_path / "ada.tar", None)
        for trusted in (False, True):
            await locker.connection.execute("DELETE FROM chats")
            await _import(settings, tmp_path / "ada.tar", None, trusted=trusted)
            assert (await locker.connection.fetchval(answered) > 0) == trusted
            assert (await locker.connection.fetchval("SELECT count(*) FROM grants") > 0) == trusted


async def test_a_turn_that_waits_for_a_job_ends_as_cancelled_after_an_import(
    harness: Harness, asked: Asked, settings: Settings, tmp_path: Path
) -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(
            "UPDATE turns SET status = 'waiting', ended_at = NULL, stop_reason = NULL WHERE id = $1", asked.turn
        )
        await locker.connection.execute(
            "INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline)"
            " VALUES (gen_random_uuid(), $1, 1, 'a', 'dig', 'tool', '{}', now())",
            asked.turn,
        )
        await _export(settings, OWNER, tmp_path / "ada.tar", None)
        await locker.connection.execute("DELETE FROM chats")
        await _import(settings, tmp_path / "ada.tar", None)
        row = await locker.connection.fetchrow("SELECT status, cancel_requested FROM turns WHERE id = $1", asked.turn)
        assert row is not None
        assert tuple(row) == ("queued", True)


async def test_the_commands_report_their_results(
    harness: Harness, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {**os.environ, "DATABASE_URL": harness.url})

    async def call(*arguments: str, status: int = 0) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, commands, ["owners", *arguments])
        assert done.exit_code == status, done.output
        return f"{done.output}{done.exception or ''}"

    listed = await call("list")
    assert f"{OWNER}\t2 chats\t1 uploads\t13 bytes\t1 documents\t1 tokens" in listed
    assert "There is no owner nobody" in await call("export", "nobody", "x.tar", status=1)
    await call("export", OWNER, "ada.tar")
    piped = await asyncio.to_thread(CliRunner().invoke, commands, ["owners", "export", OWNER, "-"])
    assert piped.stdout_bytes == (tmp_path / "ada.tar").read_bytes()
    moved = await call("import", "ada.tar", "--owner", "bob")
    assert f"chat {asked.chat} is now " in moved
    assert "chats: 2\n" in moved
    assert "chats: 0 (2 were there)" in await call("import", "ada.tar")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "ada.tar").read_bytes()[:9000])
    assert "cut.tar ends too early" in await call("import", "cut.tar", status=1)
    assert "Aborted" in await call("erase", OWNER, status=1)
    assert f"Erased {OWNER}: nothing is left" in await call("erase", OWNER, "--yes")
    assert OWNER not in await call("list")


async def test_the_secrets_of_tools_are_masked_in_an_archive(harness: Harness) -> None:
    call = HttpCall("https://crm.example.com/", headers={"Authorization": "Bearer tok-123456"})
    tool = ToolSpec("crm", "Looks.", '{"type":"object"}', http=call)
    definition = '{"type":"mcp","server_url":"https://crm.test/","authorization":"tok-123456"}'
    params = {"mcp_servers": [{"url": "https://crm.test/", "authorization_token": "tok-123456"}]}
    asked = await harness.ask('Show me "headers" of', tools=[tool], provider_tools=(definition,), params=params)
    settings = {"tools": [{"type": "http", "name": "crm", "headers": {"x-key": "tok-123456"}}], "params": params}
    await Chats(harness.database).change(OWNER, asked.chat, lambda _: {"settings": settings})
    parts = [part.content async for part in OwnerExport(harness.database, OWNER).parts()]
    assert not [part for part in parts if b"tok-123456" in part]
    assert sum(part.count(MASK.encode()) for part in parts) == 5
