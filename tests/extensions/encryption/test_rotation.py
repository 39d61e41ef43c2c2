"""New keys of owners: each row is encrypted again while servers run, and then the old keys are destroyed."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import asyncpg
import pytest
from click.testing import CliRunner

from tests.extensions.encryption.test_codec import GET_FILES, codec_of, stored
from tests.extensions.http_tools.test_http_tools import Service
from tests.extensions.http_tools.test_http_tools import serving as serving_tools
from tests.extensions.keys.test_old_secrets import WORDS, answer, client_for, ended, fill, found_in
from tests.support.harness import Harness
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.owner_rows import rows_of
from tests.support.server_process import clean_environment
from turnstream.cli import commands
from turnstream.domain.errors import Conflict
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.encryption import rotation
from turnstream.extensions.encryption.codec import SealingCodec
from turnstream.extensions.encryption.rotation import KeyRotation, KeyStep
from turnstream.extensions.keys.rotation import rotate
from turnstream.kit.ids import new_id
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.providers.anthropic.parameters import PARAMETERS
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.parameters import COMMON
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import Statement
from turnstream.storage.migrations import downgrade
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.runs.queue import Queue

pytestmark = pytest.mark.extensions("documents", "encryption", "http_tools", "keys", "mcp", "schedules", "tool_results")

SEALED: Final = re.compile(r"turnstream-(?:text|sealed):1:[\w:=-]+")
GET_KEYS = Statement("SELECT owner, wrapped, earlier, resealed_at FROM owner_keys ORDER BY owner")
PUT_SIGN_IN = Statement(
    "INSERT INTO sign_ins (owner, server, tokens, signed_in_at)"
    " VALUES ('ada', :server, :tokens, now()) RETURNING server"
)
GET_SIGN_INS = Statement("SELECT server, tokens FROM sign_ins ORDER BY server")
ADDRESS: Final = "https://mail.test/mcp"
# The command that rotates keys, with its waiting times set to zero.
COMMAND: Final = """
from turnstream.extensions.encryption import rotation
from turnstream.cli import main
rotation.WRITERS = rotation.READERS = 0.0
main(["encryption", "rotate", "--older-than", "0"])
"""


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "WRITERS", 0.0)
    monkeypatch.setattr(rotation, "READERS", 0.0)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        service = await serving_tools(stack)
        service.answer("/", text="Rain.")
        yield service


def rotation_of(database: Any, masters: MasterKeys, **chosen: Any) -> KeyRotation:
    return KeyRotation(database, OwnerKeys(database, masters), {ADDRESS}, **{"age": 0.0, **chosen})


async def sealed_in(url: str) -> dict[str, str]:
    """Returns all encrypted texts and secrets, by table. The journal's log is omitted: it keeps texts for only two
    seconds.
    """
    rows = await rows_of(url, without=("journal_ticks",))
    return {text: table for table, lines in rows.items() for text in SEALED.findall(json.dumps(lines))}


async def done(rotating: KeyRotation) -> list[KeyStep]:
    return [step async for step in rotating.run()]


async def up_to(rotating: KeyRotation, kind: str) -> KeyStep:
    """Interrupts the rotation after its first step of this kind. Returns that step."""
    async with aclosing(rotating.run()) as steps:
        return await anext(step async for step in steps if step.kind == kind)


async def opened(masters: MasterKeys, harness: Harness, path: str, owner: str = "ada") -> str | None:
    """Reads a document as a newly started replica does, which has no cached keys."""
    harness.database.codec = SealingCodec(OwnerKeys(harness.database, masters), seals=True)
    return await Documents(harness.database).read(owner, path)


async def test_every_row_is_encrypted_again_while_a_server_uses_it(database_url: str, service: Service) -> None:
    provider, key = ScriptedProvider(answer), new_master_key()
    parameters = (*COMMON, *(each for each in PARAMETERS if each.name == "mcp_servers"))
    settings: dict[str, Any] = {
        "model": "m",
        "master_key": key,
        "encrypt_texts": True,
        "request_tools_allow": "127.0.0.1",
        "provider_tools_allow": "mcp",
        "params_allow": "mcp_servers",
    }
    offers = [ProviderModels(provider, ["m"], (), parameters)]
    async with serving(database_url, offers=offers, **settings) as server:
        database, masters = server.services.storage.database, MasterKeys.read(key)
        chats, fixed = await fill(server, service)
        documents, uploads = Documents(database), Uploads(database)
        await documents.put("ada", "a.md", "Tide.")
        file = await uploads.put("ada", "text/plain", b"Ebb.", "ebb.txt")
        owner_key = await OwnerKeys(database, masters).find_or_create("ada")
        for name, place in (("mail", ("sign_in", "mail", ADDRESS)), ("own:crm", ("own_server", "own:crm"))):
            await database.rows(PUT_SIGN_IN, server=name, tokens=owner_key.seal("token", *place))
        before, files = await sealed_in(database_url), await database.rows(GET_FILES, owner="ada")
        assert len(before) > 20
        rotating = rotation_of(database, masters)
        assert await rotating.replica_without() is None
        steps = await done(rotating)
        assert [(step.kind, step.number, step.failed) for step in steps] == [
            ("replaced", 1, []),
            ("resealed", 1, []),
            ("destroyed", 1, []),
        ]
        after = await sealed_in(database_url)
        assert {after[text] for text in after.keys() & before} == set()
        assert found_in(await rows_of(database_url)) == set()
        (again,) = await database.rows(GET_FILES, owner="ada")
        assert again["id"] == files[0]["id"]
        assert {again["digest"], again["content"]}.isdisjoint({files[0]["digest"], files[0]["content"]})
        (row,) = await database.rows(GET_KEYS)
        assert (row["earlier"], row["resealed_at"]) == (None, None)
        now = await OwnerKeys(database, masters).find("ada")
        assert now is not None
        tokens = {row["server"]: row["tokens"] for row in await database.rows(GET_SIGN_INS)}
        assert now.open(tokens["mail"], "sign_in", "mail", ADDRESS) == "token"
        assert now.open(tokens["own:crm"], "own_server", "own:crm") == "token"

        service.requests.clear()
        assert await documents.read("ada", "a.md") == "Tide."
        assert await uploads.contents([file.id]) == {file.id: b"Ebb."}
        async with client_for(server, await server.token("ada")) as client:
            for chat in chats:
                await ended(client, chat)
        async with client_for(server, fixed) as client:
            await ended(client, "/api/turns")
        assert [headers["authorization"] for _, _, headers, _ in service.requests] == [f"Bearer {WORDS[0]}"] * 4
        after = await sealed_in(database_url)
        assert {after[text] for text in after.keys() & before} == set()


async def test_people_talk_while_their_key_is_changed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while, replicas still write with the old key that they have cached. After the rotation, no row needs the
    old key.
    """
    monkeypatch.setattr("turnstream.extensions.encryption.codec.KEPT", 1.0)
    monkeypatch.setattr(rotation, "WRITERS", 2.0)
    monkeypatch.setattr(rotation, "READERS", 1.0)
    key, answered = new_master_key(), asyncio.Event()
    offers = [ProviderModels(ScriptedProvider(lambda _: message_of(text("Ebb ", "and ", "flow."))), ["m"])]
    async with (
        serving(database_url, offers=offers, master_key=key, encrypt_texts=True) as server,
        Client(server.url) as client,
    ):
        database, masters, answers = server.services.storage.database, MasterKeys.read(key), list[str]()

        async def talk(chat: str) -> None:
            while True:
                answer = await client.ask(chat, "Tide.", model="m")
                assert answer.assistant["blocks"][0]["text"] == "Ebb and flow."
                answers.append(answer.url)
                answered.set()

        async with asyncio.TaskGroup() as group:
            talks = [group.create_task(talk(await client.chat())) for _ in range(3)]
            await answered.wait()
            steps = await done(rotation_of(database, masters))
            for task in talks:
                task.cancel()
        assert [step.kind for step in steps if not step.failed] == [
            "replaced",
            "waits",
            "resealed",
            "waits",
            "destroyed",
        ]
        assert database.codec is not None
        again = SealingCodec(OwnerKeys(database, masters), seals=True)
        monkeypatch.setattr(database.codec, "open", again.open)
        for url in answers:
            turn = await client.json("GET", url)
            assert turn["blocks"][0]["text"] == "Ebb and flow."


async def test_a_rotation_that_was_cut_off_is_completed_by_the_next(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    for owner in ("ada", "bob", "cy"):
        await Documents(harness.database).put(owner, "a.md", f"Tide of {owner}.")
    texts = {owner: (await stored(harness, owner))[0] for owner in ("ada", "bob", "cy")}
    await up_to(rotation_of(harness.database, masters), "replaced")
    assert await stored(harness) == [texts["ada"]]
    await up_to(rotation_of(harness.database, masters, age=60.0), "resealed")
    keys = await harness.database.rows(GET_KEYS)
    assert [(row["earlier"] is None, row["resealed_at"] is None) for row in keys] == [
        (False, False),
        (False, True),
        (False, True),
    ]
    for owner in texts:
        assert await opened(masters, harness, "a.md", owner) == f"Tide of {owner}."
    steps = await done(rotation_of(harness.database, masters, age=60.0))
    assert [(step.kind, step.number, step.owner) for step in steps] == [
        ("resealed", 2, "bob"),
        ("resealed", 2, "cy"),
        ("destroyed", 3, ""),
    ]
    for owner, before in texts.items():
        assert (await stored(harness, owner))[0] != before
        assert await opened(masters, harness, "a.md", owner) == f"Tide of {owner}."
    assert await done(rotation_of(harness.database, masters, age=60.0)) == [], "the keys are young"


async def test_a_killed_command_is_completed_by_the_next(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    uploads = Uploads(harness.database)
    file = await uploads.put("ada", "text/plain", b"Ebb.")
    await Documents(harness.database).put("bob", "a.md", "Tide.")

    async def both_open() -> None:
        assert await opened(masters, harness, "a.md", "bob") == "Tide."
        assert await uploads.contents([file.id]) == {file.id: b"Ebb."}

    env = {**clean_environment(), "DATABASE_URL": harness.url, "TURNSTREAM_MASTER_KEY": key, "HOME": os.environ["HOME"]}

    async def start() -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(sys.executable, "-c", COMMAND, env=env, stdout=pipe, stderr=pipe)

    async with harness.locker() as locker:
        async with locker.holding("LOCK TABLE documents IN SHARE MODE"):
            process = await start()
            await locker.waiting()
            process.kill()
            _, shown = await process.communicate()
        assert b"1 of 2 owners" in shown
    await both_open()
    assert [row["earlier"] is None for row in await harness.database.rows(GET_KEYS)] == [False, False]
    process = await start()
    out, shown = await process.communicate()
    assert (process.returncode, b"2 keys from before are destroyed" in out) == (0, True), (out, shown)
    assert [row["earlier"] for row in await harness.database.rows(GET_KEYS)] == [None, None]
    await both_open()
    (entry,) = await newest_entries(harness.database, None, "owner_keys.", 1, 9)
    assert entry.detail["destroyed"] == 2


async def test_replicas_with_either_key_in_memory_read_and_write(harness: Harness) -> None:
    """Each replica caches a key for seconds. Meanwhile it reads rows that are encrypted with the new key, and still
    writes with the old key.
    """
    masters, documents = MasterKeys.read(key := new_master_key()), Documents(harness.database)
    slow = codec_of(harness, key)
    slow._clock = lambda: 0.0  # the cached key of this replica never expires
    harness.database.codec = slow
    await documents.put("ada", "a.md", "Tide.")
    await up_to(rotation_of(harness.database, masters), "replaced")
    await documents.put("ada", "b.md", "By the key before.")
    harness.database.codec = codec_of(harness, key)
    await documents.put("ada", "c.md", "By the new key.")
    assert [await documents.read("ada", f"{name}.md") for name in "ab"] == ["Tide.", "By the key before."]
    harness.database.codec = slow
    assert await documents.read("ada", "c.md") == "By the new key."
    assert [step.rows for step in await done(rotation_of(harness.database, masters, age=60.0))] == [2, 0]
    assert [await documents.read("ada", f"{name}.md") for name in "abc"] == [
        "Tide.",
        "By the key before.",
        "By the new key.",
    ]


async def test_a_transaction_that_is_open_is_waited_for(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open transaction has written a row that is encrypted with the old key."""
    masters = MasterKeys.read(key := new_master_key())
    codec = codec_of(harness, key)
    sealed = await codec.seal(rotation.OF_OWNERS[1][0].columns, {"owner": "ada", "path": "a.md", "content": "Tide."})
    insert = "INSERT INTO documents (owner, path, content, searchable) VALUES ('ada', 'a.md', $1, 0)"
    looked, row = asyncio.Event(), harness.database.row

    async def watched(statement: Statement, **values: Any) -> Any:
        found = await row(statement, **values)
        if statement is rotation.GET_EARLIER_TRANSACTION and found:
            looked.set()
        return found

    monkeypatch.setattr(harness.database, "row", watched)
    async with harness.locker() as locker:
        async with locker.holding(insert, sealed["content"], commit=True):
            rotating = asyncio.create_task(done(rotation_of(harness.database, masters)))
            await looked.wait()
            assert not rotating.done()
        assert [step.kind for step in await rotating] == ["replaced", "resealed", "destroyed"]
    assert await opened(masters, harness, "a.md") == "Tide."


async def test_a_turn_that_runs_with_secrets_keeps_the_key_before(harness: Harness) -> None:
    """The turn has read its secrets before the rotation, and decrypts them only at its next call."""
    masters = MasterKeys.read(new_master_key())
    sealed = (await OwnerKeys(harness.database, masters).find_or_create("ada")).seal("secret", "https://x.test", "key")
    asked = await harness.ask()
    run = Statement(
        """
        UPDATE turns SET status = 'running', attempt = 1, replica = :replica, started_at = now() - interval '1 hour',
            request = json_build_object('tools', json_build_array(json_build_object(
                'url', 'https://x.test', 'headers', json_build_object('key', CAST(:sealed AS text)))))
        WHERE id = :turn RETURNING id
        """
    )
    await harness.database.rows(run, turn=asked.turn, replica=new_id(), sealed=sealed)
    steps = await done(rotation_of(harness.database, masters))
    assert [(step.kind, step.rows) for step in steps] == [("replaced", 0), ("resealed", 1)]
    key = await OwnerKeys(harness.database, masters).find("ada")
    assert key is not None
    assert key.open(sealed, "https://x.test", "key") == "secret"
    end = Statement(
        """
        UPDATE turns SET status = 'complete', stop_reason = 'end_turn', replica = NULL, ended_at = now()
        WHERE id = :turn RETURNING id
        """
    )
    await harness.database.rows(end, turn=asked.turn)
    steps = await done(rotation_of(harness.database, masters, age=60.0))
    assert [(step.kind, step.number) for step in steps] == [("destroyed", 1)]
    assert (await harness.database.rows(GET_KEYS))[0]["earlier"] is None


async def test_an_owner_who_is_erased_meanwhile_is_no_failure(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    await Documents(harness.database).put("ada", "a.md", "Tide.")
    await up_to(rotation_of(harness.database, masters), "replaced")
    async for _ in Owners(harness.database).erase("ada"):
        pass
    assert await done(rotation_of(harness.database, masters, age=60.0)) == []
    assert await harness.database.rows(GET_KEYS) == []


BACKED_UP: Final = ("owner_keys", "documents")


async def test_a_backup_of_an_erased_owner_opens_no_more_without_the_master_key_before(harness: Harness) -> None:
    before, after = new_master_key(), new_master_key()
    masters = MasterKeys.read(before)
    harness.database.codec = codec_of(harness, before)
    for owner in ("ada", "bob"):
        await Documents(harness.database).put(owner, "a.md", "Tide.")
    connection = await asyncpg.connect(harness.url)
    for table in BACKED_UP:
        await connection.execute(f"CREATE TABLE backup_{table} AS SELECT * FROM {table} WHERE owner = 'ada'")
    async for _ in Owners(harness.database).erase("ada"):
        pass
    async for _ in rotate(harness.database, MasterKeys.read(f"{after},{before}")):
        pass
    for table in BACKED_UP:
        names = ", ".join(column.name for column in ALL_TABLES[table].columns.values() if not column.computed)
        await connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM backup_{table}")
    await connection.close()
    assert await opened(MasterKeys.read(after), harness, "a.md", "bob") == "Tide."
    with pytest.raises(Conflict, match="cannot be decrypted"):
        await opened(MasterKeys.read(after), harness, "a.md")
    assert await opened(masters, harness, "a.md") == "Tide.", "the master key before opens it"


async def test_a_row_that_cannot_be_decrypted_keeps_the_key_before(harness: Harness) -> None:
    masters, documents = MasterKeys.read(key := new_master_key()), Documents(harness.database)
    harness.database.codec = codec_of(harness, key)
    await documents.put("ada", "a.md", "Tide.")
    swap = Statement("UPDATE documents SET path = :path WHERE owner = 'ada' RETURNING path")
    await harness.database.rows(swap, path="b.md")
    replaced, resealed = await done(rotation_of(harness.database, masters))
    assert (replaced.kind, replaced.failed) == ("replaced", [])
    assert "Stored contents of ada cannot be decrypted" in resealed.failed[0]
    await harness.database.rows(swap, path="a.md")
    assert await opened(masters, harness, "a.md") == "Tide."
    steps = await done(rotation_of(harness.database, masters, age=60.0))
    assert [(step.kind, step.failed) for step in steps] == [("resealed", []), ("destroyed", [])]
    assert await opened(masters, harness, "a.md") == "Tide."


async def test_an_owner_who_moves_keeps_the_key(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    for owner in ("ada", "bob", "cy"):
        await Documents(harness.database).put(owner, "a.md", "Tide.")
    connection = await asyncpg.connect(harness.url)
    await connection.execute(
        "INSERT INTO moves (owner, cell, state, held_until) VALUES ('ada', '08', 'leaving', now()),"
        " ('bob (moved to 08)', '08', 'leaving', 'infinity')"
    )
    await connection.close()
    assert await rotation_of(harness.database, masters).count() == 1
    await done(rotation_of(harness.database, masters))
    assert [await opened(masters, harness, "a.md", owner) for owner in ("ada", "bob", "cy")] == ["Tide."] * 3


async def test_a_single_owner_may_get_a_new_key(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    for owner in ("ada", "bob"):
        await Documents(harness.database).put(owner, "a.md", "Tide.")
    before = [await stored(harness, owner) for owner in ("ada", "bob")]
    await done(rotation_of(harness.database, masters, owner="ada"))
    after = [await stored(harness, owner) for owner in ("ada", "bob")]
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)


async def test_the_command_names_the_missing_setting(harness: Harness) -> None:
    key = new_master_key()
    env = {**os.environ, "DATABASE_URL": harness.url, "TURNSTREAM_MASTER_KEY": key}

    async def call(*arguments: str, **more: str | None) -> str:
        invoke = CliRunner().invoke
        done = await asyncio.to_thread(invoke, commands, ["encryption", "rotate", *arguments], env={**env, **more})
        return f"{done.output}{done.exception or ''}"

    assert "ada has no key that is 1 days old" in await call("--owner", "ada")
    assert "TURNSTREAM_MASTER_KEY must be set" in await call(TURNSTREAM_MASTER_KEY=None)
    assert "0 owners have a new key; 0 keys from before are destroyed" in await call()
    await OwnerKeys(harness.database, MasterKeys.read(key)).find_or_create("ada")
    shown = await call("--older-than", "0")
    assert "1 of 1 owners have a new key" in shown
    assert "1 owners have a new key; 1 keys from before are destroyed" in shown
    await Queue(harness.database, new_id(), "old:1", 1).renew_lease(60)
    assert "The replica old:1 is of a version that cannot read rows of two keys" in await call("--older-than", "0")


async def test_replicas_that_read_one_key_alone_come_first(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    codec = codec_of(harness, key)
    before = Queue(harness.database, new_id(), "old:1", 1, extensions=codec.forms[:1], master_keys=masters.ids)
    await before.renew_lease(60)
    assert await rotation_of(harness.database, masters).replica_without() == "old:1"
    await before.leave()
    now = Queue(harness.database, new_id(), "new:1", 2, extensions=codec.forms, master_keys=masters.ids)
    await now.renew_lease(60)
    assert await rotation_of(harness.database, masters).replica_without() is None


async def test_a_destroyed_key_opens_no_copy_of_a_row(harness: Harness) -> None:
    masters = MasterKeys.read(key := new_master_key())
    harness.database.codec = codec_of(harness, key)
    await Documents(harness.database).put("ada", "a.md", "Tide.")
    (copy,) = await stored(harness)
    await done(rotation_of(harness.database, masters))
    put = Statement("UPDATE documents SET content = :content WHERE owner = 'ada' RETURNING path")
    await harness.database.rows(put, content=copy)
    with pytest.raises(Conflict):
        await opened(masters, harness, "a.md")


def test_a_downgrade_is_refused_while_rows_need_the_key_before(database_url: str) -> None:
    async def execute(sql: str) -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(
        execute("INSERT INTO owner_keys (owner, master, wrapped, earlier) VALUES ('ada', '12345678', '', 'key')")
    )
    with pytest.raises(Exception, match="no_rotation_is_open"):
        downgrade(database_url, "0089")
    asyncio.run(execute("UPDATE owner_keys SET earlier = NULL"))
    downgrade(database_url, "0089")
