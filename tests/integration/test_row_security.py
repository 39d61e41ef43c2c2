"""The second wall: through the API's database no statement sees or writes what another owner has."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from app.domain.blocks import Block
from app.domain.chats import Chat
from app.domain.errors import ConfigError, StatementRefused
from app.domain.kinds import TEXT
from app.domain.turns import TurnRequest
from app.kit.ids import new_id
from app.llm.scripted import ScriptedProvider, message_of, text
from app.storage.chats.chats import Chats
from app.storage.chats.exchanges import Exchanges, IdempotencyKey, NewExchange
from app.storage.chats.search import Search
from app.storage.chats.turns import Turns
from app.storage.database import OWNER as OWNER_OF_REQUEST
from app.storage.database import Database, Statement, connect
from app.storage.row_security import CLOSED, admit, embedded_api_url
from app.storage.tables import metadata
from tests.support.harness import OWNER, Harness

# All tables whose rows belong to an owner, by themselves or through a chat or a turn.
TABLES = sorted(
    name
    for name, table in metadata.tables.items()
    if name not in CLOSED and {"owner", "chat_id", "turn_id"} & {*table.columns.keys()}
)
FORGETFUL = {table: Statement(f"SELECT * FROM {table}") for table in TABLES}

# Rows of an owner, of a chat, of a turn.
OF_OWNER = [
    "uploads (id, owner, digest, media_type, content) SELECT gen_random_uuid(), $1, sha256('x'), 't', 'x'",
    "documents (owner, path, content, searchable) SELECT $1, 'a.md', 'x', 1",
    "deleted_chats SELECT $1, gen_random_uuid(), now()",
    "search_owners SELECT $1, 'english'",
    "search_segments SELECT hashtext($1), $1, 0",
    "search_pending (owner, chat_id) SELECT $1, gen_random_uuid()",
    "tool_cache (owner, key, tool, content, size, expires_at) SELECT $1, sha256('x'), 't', 'x', 1, now()",
]
OF_CHAT = [
    "deleted_turns SELECT gen_random_uuid(), $1, 1, now()",
    "search_backlog SELECT $1",
    "grants (id, chat_id, tool, digest, turn_id, tool_use_id) SELECT $1, $1, 't', 'd', $1, 't'",
]
OF_TURN = [
    "tool_calls SELECT $1, 1, 't', 't', 1, 'started', now()",
    "asks (turn_id, round, tool_use_id, name, kind, digest, attempt) SELECT $1, 1, 't', 't', 'client', 'd', 1",
    "steers (id, turn_id, blocks) SELECT gen_random_uuid(), $1, '[]'",
    "webhooks (turn_id) SELECT $1",
    "waiting_webhooks (turn_id, asked, calls) SELECT $1, 1, '[]'",
    "open_text SELECT $1, 1, 9, 0, 1, 'text', NULL, NULL, 'x'",
]


@contextmanager
def acting_for(owner: str) -> Iterator[None]:
    token = OWNER_OF_REQUEST.set(owner)
    yield
    OWNER_OF_REQUEST.reset(token)


@pytest.fixture
async def api(harness: Harness) -> AsyncIterator[Database]:
    url = await embedded_api_url(harness.url)
    key = await admit(harness.url, url)
    async with connect(url, size=3, key=key) as database:
        yield database


@pytest.fixture
async def rows(harness: Harness) -> None:
    """A row of each table for two owners."""
    async with harness.replica(ScriptedProvider(lambda _: message_of(text("Hello.")))) as replica:
        turns = {OWNER: await harness.ask(), "bob": await harness.ask()}
        for asked in turns.values():
            await harness.finish(replica, asked)
    await Search(harness.database).index()
    async with harness.locker() as locker:
        execute = locker.connection.execute
        await execute("UPDATE chats SET owner = 'bob' WHERE id = $1", turns["bob"].chat)
        for table in ("search_chats", "search_texts"):
            await execute(f"UPDATE {table} SET owner = 'bob' WHERE chat_id = $1", turns["bob"].chat)
        for owner, asked in turns.items():
            chat, turn = asked.chat, asked.turn
            for statements, key in ((OF_OWNER, owner), (OF_CHAT, chat), (OF_TURN, turn)):
                for each in statements:
                    await execute(f"INSERT INTO {each}", key)
            await execute("INSERT INTO idempotency_keys VALUES ($1, 'k', 'd', $2)", owner, turn)
        if await locker.connection.fetchval("SELECT count(*) FROM charges WHERE owner = 'bob'") == 0:
            await execute("UPDATE charges SET owner = 'bob' WHERE ctid = (SELECT max(ctid) FROM charges)")


@pytest.mark.usefixtures("rows")
async def test_a_statement_that_forgets_the_owner_sees_the_rows_of_one(harness: Harness, api: Database) -> None:
    seen = {}
    for table in TABLES:
        everything = {str(dict(row)) for row in await harness.database.rows(FORGETFUL[table])}
        parts = []
        for owner in (OWNER, "bob"):
            with acting_for(owner):
                parts.append({str(dict(row)) for row in await api.rows(FORGETFUL[table])})
                async with api.transaction(snapshot=True) as moment:
                    assert {str(dict(row)) for row in await moment.rows(FORGETFUL[table])} == parts[-1]
        assert await api.rows(FORGETFUL[table]) == [], table  # for no owner
        assert all(parts) or not everything, table
        assert not parts[0] & parts[1], table
        assert parts[0] | parts[1] == {row for row in everything if "'mark'" not in row}, table
        seen[table] = len(everything)
    assert len([table for table, count in seen.items() if count >= 2]) >= 18


@pytest.mark.usefixtures("rows")
async def test_a_statement_that_forgets_the_owner_changes_the_rows_of_one(harness: Harness, api: Database) -> None:
    before = await harness.database.rows(Statement("SELECT * FROM chats WHERE owner = 'bob'"))
    with acting_for(OWNER):
        changed = await api.rows(Statement("UPDATE chats SET title = 'mine' RETURNING owner"))
        assert {row["owner"] for row in changed} == {OWNER}
        assert {row["owner"] for row in await api.rows(Statement("DELETE FROM documents RETURNING owner"))} == {OWNER}
        (bobs,) = before
        (turn, *_) = await harness.database.rows(
            Statement("SELECT id FROM turns WHERE chat_id = :chat"), chat=bobs["id"]
        )
        for statement in (
            "INSERT INTO chats (id, owner) VALUES (gen_random_uuid(), 'bob')",
            f"UPDATE chats SET owner = 'bob' WHERE owner = '{OWNER}'",
            f"INSERT INTO deleted_turns SELECT gen_random_uuid(), '{bobs['id']}', 1, now()",
            f"INSERT INTO grants SELECT gen_random_uuid(), '{bobs['id']}', 't', 'd', NULL, gen_random_uuid(), 't'",
            f"INSERT INTO steers SELECT gen_random_uuid(), '{turn['id']}', '[]', now()",
        ):
            with pytest.raises(StatementRefused, match="row-level security"):
                await api.rows(Statement(statement))
        await api.rows(Statement("DELETE FROM chats"))
    assert await harness.database.rows(Statement("SELECT * FROM chats")) == before
    assert len(await harness.database.rows(Statement("SELECT * FROM documents"))) == 1


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("function", "word"), [("search_matches", "hello"), ("search_inside", "ello")])
async def test_a_search_that_names_another_owner_finds_nothing(
    harness: Harness, api: Database, function: str, word: str
) -> None:
    search = Statement(f"SELECT * FROM {function}('bob', 1000, '{{{word}}}', false, NULL, NULL, NULL)")
    bobs = Statement("UPDATE search_segments SET owner = 'bob' WHERE chats > 0")
    await harness.database.rows(bobs)
    assert await harness.database.rows(search) != []
    with acting_for(OWNER):
        assert await api.rows(search) == []
    assert await api.rows(search) == []
    with acting_for("bob"):
        assert await api.rows(search) != []


async def test_every_table_with_an_owner_has_its_policy_and_is_reached_by_the_api_alone_through_it(
    harness: Harness, api: Database
) -> None:
    async with harness.locker() as locker:
        fetch = locker.connection.fetch
        policies = {
            row["relname"]
            for row in await fetch(
                "SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid WHERE relrowsecurity"
                " AND polname = 'by_owner' AND polcmd = '*'"
            )
        }
        assert policies == {*TABLES}
        role = await locker.connection.fetchval("SELECT $1::text", "turnstream_api")
        reachable = await fetch(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'S', 'v') AND relnamespace = 'public'::regnamespace"
            " AND has_table_privilege($1, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')",
            role,
        )
        assert {row["relname"] for row in reachable} == policies
        truncatable = "SELECT FROM pg_class WHERE relname = ANY($2) AND has_table_privilege($1, oid, 'TRUNCATE')"
        assert not await fetch(truncatable, role, TABLES)


async def test_a_chat_begins_with_its_message_in_one_statement(api: Database) -> None:
    """Its turns cannot be returned: their policy looks for a chat that the statement does not see yet."""
    now = datetime.now(UTC)
    chat = Chat(new_id(), OWNER, None, None, {}, created_at=now, updated_at=now)
    request = TurnRequest("scripted", params={"stop": ["."]}, labels={"n": "1"})
    message = NewExchange([Block(0, 0, 0, TEXT, "Hello")], request, None, IdempotencyKey("key", b"d" * 32))
    exchanges = Exchanges(api)
    with acting_for("bob"):
        assert await exchanges.begin_chat(chat, message, new_id()) is None
    with acting_for(OWNER):
        begun = await exchanges.begin_chat(chat, message, new_id())
        assert begun is not None
        for turn in (begun.user_turn, begun.assistant_turn):
            assert await Turns(api).get(OWNER, chat.id, turn.id) == turn, "it is what the rows hold"


async def test_requests_of_many_owners_share_connections_and_see_their_own(harness: Harness, api: Database) -> None:
    """The owner is that of the transaction: on one connection the next statement has another one, or none."""

    async def act(owner: str) -> None:
        OWNER_OF_REQUEST.set(owner)
        chats = Chats(api)
        for number in range(10):
            await chats.create(owner, f"{number}", None, {})
            titles = await api.rows(Statement("SELECT owner, title FROM chats ORDER BY id"))
            assert [(row["owner"], row["title"]) for row in titles] == [(owner, f"{n}") for n in range(number + 1)]

    await asyncio.gather(*(act(f"owner '{number}' \\ é") for number in range(12)))
    assert await api.rows(Statement("SELECT * FROM chats")) == []


async def test_every_form_of_statement_names_the_owner(api: Database) -> None:
    setting = "SELECT owner_in_scope() AS owner"
    recursive = (
        f"WITH RECURSIVE a AS (SELECT 1 AS n UNION SELECT n + 1 FROM a WHERE n < :most) {setting} FROM a LIMIT 1"
    )
    forms: list[tuple[str, dict[str, int]]] = [
        (setting, {}),
        (f"  WITH a AS (SELECT 1) {setting} FROM a", {}),
        (recursive, {"most": 3}),
        ("SELECT * FROM (VALUES (owner_in_scope())) AS a (owner)", {}),
    ]
    with acting_for(OWNER):
        for sql, values in forms:
            for _ in range(7):  # a statement that is prepared, and its generic plan
                assert [row["owner"] for row in await api.rows(Statement(sql), **values)] == [OWNER], sql


async def test_a_role_that_no_policy_holds_is_refused(harness: Harness) -> None:
    with pytest.raises(ConfigError, match="to which row-level security does not apply"):
        await admit(harness.url, harness.url)
    async with harness.locker() as locker:
        member = f"member_{UUID(int=new_id().int).hex}"
        await locker.connection.execute(f"CREATE ROLE {member} LOGIN IN ROLE postgres")
        try:
            url = urlsplit(harness.url)._replace(netloc=f"{member}@").geturl()
            with pytest.raises(ConfigError, match="own no table of turnstream"):
                await admit(harness.url, url)
        finally:
            await locker.connection.execute(f"DROP ROLE {member}")
    with pytest.raises(ConfigError, match="names a role that cannot be used"):
        await admit(harness.url, urlsplit(harness.url)._replace(netloc="nobody_at_all@").geturl())


async def test_the_role_can_read_no_token_and_forge_no_entry_of_the_trail(harness: Harness) -> None:
    url = await embedded_api_url(harness.url)
    await admit(harness.url, url)
    connection = await asyncpg.connect(url)
    try:
        for statement in (
            "SELECT hash FROM tokens",
            "INSERT INTO audit (kind, detail) VALUES ('x', '{}')",
            "TABLE audit",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()
