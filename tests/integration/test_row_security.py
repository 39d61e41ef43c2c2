"""Row-level security: through the API's database, no statement reads or writes rows of another owner."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from tests.support.harness import OWNER, Harness
from tests.support.injections import REFUSED
from tests.support.owner_rows import LAMP
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.errors import ConfigError, StatementRefused, StorageError
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import TurnRequest
from turnstream.extensions.simple_search.search import SimpleSearch
from turnstream.kit.ids import new_id
from turnstream.libraries.searches.search import SearchFilter
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges, IdempotencyKey, NewExchange, Position
from turnstream.storage.chats.grants import Grants
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import OWNER as OWNER_OF_REQUEST
from turnstream.storage.database import Database, Statement, connect
from turnstream.storage.migrations import DIGESTS
from turnstream.storage.row_security import API_ROLE, NARROW, admit, embedded_api_url
from turnstream.storage.sql_files import functions

# All tables whose rows belong to an owner, directly or through a chat or a turn.
TABLES = sorted(
    name
    for name, table in ALL_TABLES.items()
    if not table.ownership.closed and {"owner", "chat_id", "turn_id"} & {*table.columns.keys()}
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
    "tool_sets SELECT $1, sha256('x'), '[]'",
]
OF_CHAT = [
    "deleted_turns SELECT gen_random_uuid(), $1, 1, now()",
    "search_backlog SELECT $1",
    "shares (id, chat_id, digest, live, results, files) SELECT $1, $1, sha256(uuid_send($1)), true, false, false",
    "chat_members (chat_id, member, role, created_by) SELECT $1, 'eve', 'read', 'test'",
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
    """Inserts a row into each table for two owners."""
    async with harness.replica(ScriptedProvider(lambda _: message_of(text("Hello.")))) as replica:
        turns = {OWNER: await harness.ask(), "bob": await harness.ask()}
        for asked in turns.values():
            await harness.finish(replica, asked)
    await harness.database.rows(Statement("SELECT search_index_next(100)"))
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
        assert await api.rows(FORGETFUL[table]) == [], table  # no owner is set
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


@pytest.mark.usefixtures("rows")
async def test_the_search_of_the_core_finds_the_chats_of_one_owner(harness: Harness, api: Database) -> None:
    async def found(database: Database) -> int:
        hits, _ = await SimpleSearch(database).page("bob", ["h"], 9, None, SearchFilter())
        return len(hits)

    assert await found(harness.database) == 1
    with acting_for(OWNER):
        assert await found(api) == 0
    assert await found(api) == 0
    with acting_for("bob"):
        assert await found(api) == 1


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
    """The statement cannot return its turns, because their policy looks up a chat that the statement does not see
    yet.
    """
    now = datetime.now(UTC)
    chat = Chat(new_id(), OWNER, None, None, {}, created_at=now, updated_at=now)
    request = TurnRequest("scripted", params={"stop": ["."]}, labels={"n": "1"}, tools=(LAMP,))
    message = NewExchange([Block(0, 0, 0, TEXT, "Hello")], request, None, IdempotencyKey("key", b"d" * 32))
    exchanges = Exchanges(api)
    with acting_for("bob"):
        assert await exchanges.begin(Position(chat, new=True), message, new_id()) is None
    with acting_for(OWNER):
        begun = await exchanges.begin(Position(chat, new=True), message, new_id())
        assert begun is not None
        for turn in (begun.user_turn, begun.assistant_turn):
            assert await Turns(api).get(OWNER, chat.id, turn.id) == turn, "it is what the rows hold"


async def test_requests_of_many_owners_share_connections_and_see_their_own(harness: Harness, api: Database) -> None:
    """The owner is set for the transaction. The next statement on the same connection has another owner, or none."""

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
            for _ in range(7):  # a prepared statement, first with custom plans and then with its generic plan
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


async def test_every_function_of_the_schema_is_one_that_no_caller_can_turn_against_its_owner(
    harness: Harness, api: Database
) -> None:
    async with harness.locker() as locker:
        there = await locker.connection.fetch(
            """
            SELECT proname, prosecdef OR prorettype = 'trigger'::regtype AS has_rights, proconfig, rolname, rolsuper,
                rolcanlogin, rolcreaterole, rolcreatedb, rolreplication,
                has_schema_privilege(proowner, 'public', 'CREATE') AS creates,
                EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee = 0) AS open,
                has_function_privilege($1, pg_proc.oid, 'EXECUTE') AS called
            FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner WHERE pronamespace = 'public'::regnamespace
            """,
            API_ROLE,
        )
        owned = await locker.connection.fetch(
            "SELECT relname FROM pg_class WHERE relowner = 'postgres_functions'::regrole"
            " OR relname = 'tokens' AND has_table_privilege('postgres_functions', oid, 'SELECT')"
        )
    assert {each["proname"] for each in there} == {*functions()}
    assert {each["proname"] for each in there if each["called"]} == {*functions(called=True)}
    for each in there:
        assert not each["open"], each
        assert each["rolname"] == "postgres_functions"
        assert not any(each[right] for right in ("rolsuper", "rolcanlogin", "rolcreaterole", "rolcreatedb"))
        assert not each["rolreplication"]
        assert not each["creates"]
        if each["has_rights"]:
            assert "search_path=pg_catalog, public, pg_temp" in each["proconfig"], each
    assert owned == []


async def test_every_table_of_the_schema_is_behind_a_policy_or_closed(harness: Harness, api: Database) -> None:
    async with harness.locker() as locker:
        tables = await locker.connection.fetch(
            """
            SELECT relname, relrowsecurity AS guarded, ARRAY(
                SELECT each FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS each
                WHERE CASE WHEN each IN ('DELETE', 'TRUNCATE', 'TRIGGER') THEN has_table_privilege($1, oid, each)
                    ELSE has_any_column_privilege($1, oid, each) END
            ) AS may, EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0) AS open
            FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'm', 'p', 'f')
            """,
            API_ROLE,
        )
    assert {each["relname"] for each in tables} == {*ALL_TABLES, "turnstream_alembic_version", DIGESTS}
    for each in tables:
        name, may = each["relname"], {*each["may"]}
        assert not each["open"], name
        if name in TABLES:
            assert each["guarded"], name
            expected = {"SELECT", "INSERT", "UPDATE", "DELETE"}
            expected &= {*NARROW[name].replace(",", " ").split()} if name in NARROW else expected
            assert may == expected, name
        else:
            assert may == ({"SELECT"} if name == "replicas" else set()), name


@pytest.mark.usefixtures("rows")
async def test_injected_statements_of_the_api_role_are_refused(harness: Harness, api: Database) -> None:
    assert api.key is not None
    values = {"owner": api.key.sign("owner", OWNER), "actor": api.key.sign("actor", "bob")}
    connection = await asyncpg.connect(await embedded_api_url(harness.url))
    async with harness.locker() as locker:
        await locker.connection.execute("UPDATE asks SET kind = 'approval'")
        bob = await locker.connection.fetchval("SELECT id FROM chats WHERE owner = 'bob'")
        before = await locker.connection.fetch("TABLE audit")
        try:
            await connection.execute("SELECT set_config('turnstream.owner', $1, false)", values["owner"])
            for table in ("chats", "turns", "asks", "grants"):
                assert await connection.fetchval(f"SELECT count(*) FROM {table}") > 0
            for name, attempt in REFUSED.items():
                statement = attempt.format(bob=bob, approve='{"kind": "approve"}', **values)
                with pytest.raises(asyncpg.PostgresError) as refusal:
                    await connection.execute(statement)
                assert refusal.value.sqlstate == "42501", (name, refusal.value)
                await connection.execute("ROLLBACK")
            assert {row["owner"] for row in await connection.fetch("TABLE chats")} == {OWNER}
        finally:
            await connection.close()
        assert await locker.connection.fetch("TABLE audit") == before


@pytest.mark.usefixtures("rows")
async def test_one_statement_that_changes_its_owner_sees_no_row_of_another(harness: Harness, api: Database) -> None:
    """Postgres may read the owner before or after the statement changes it. The rows are then the caller's own, or the
    statement is refused.
    """
    for change in ("set_config('turnstream.owner', 'bob', true)", "CAST('bob' AS owner_scope)"):
        for statement in (
            f"SELECT owner, {change} FROM chats",
            f"WITH changed AS MATERIALIZED (SELECT {change}) SELECT owner FROM changed, chats",
            f"SELECT owner FROM chats WHERE {change} IS NOT NULL",
            f"SELECT owner FROM (VALUES ({change})) AS changed CROSS JOIN LATERAL (SELECT owner FROM chats) AS c",
            f"SELECT owner, {change} FROM chats ORDER BY {change} LIMIT 9",
        ):
            seen: set[str] = set()
            with acting_for(OWNER), suppress(StorageError):
                seen = {row["owner"] for row in await api.rows(Statement(statement))}
            assert seen <= {OWNER}, statement


@pytest.mark.usefixtures("rows")
async def test_statements_without_a_privilege_neither_show_nor_change_rows_of_another_owner(
    harness: Harness, api: Database
) -> None:
    pending = Statement("SELECT count(*) AS number FROM search_pending WHERE owner = 'bob'")
    before = await harness.database.rows(pending)
    with acting_for(OWNER):
        for call in ("take_place('bob', 9, NULL)", "take_place('bob', NULL, 9)", "search_language('bob') <> 'simple'"):
            assert [row["it"] for row in await api.rows(Statement(f"SELECT {call} AS it"))] == [False], call
        await api.rows(Statement("SELECT search_index_of('bob', 9)"))
    assert await harness.database.rows(pending) == before


@pytest.mark.usefixtures("rows")
async def test_the_trail_names_the_actor_whom_a_server_has_signed_also_where_a_grant_comes_back(
    harness: Harness, api: Database
) -> None:
    trail = Statement("SELECT kind, actor FROM audit WHERE kind LIKE 'grant.%' ORDER BY id DESC LIMIT 2")
    (grant,) = await harness.database.rows(
        Statement("SELECT grants.id, chat_id FROM grants JOIN chats ON chats.id = chat_id WHERE owner = :owner"),
        owner=OWNER,
    )
    back = Statement(
        "UPDATE grants SET revoked_at = NULL FROM set_config('turnstream.actor', :actor, true) AS a WHERE a IS NOT NULL"
    )
    with acting_for(OWNER):
        await Grants(api).revoke(OWNER, grant["chat_id"], grant["id"], "token of ada")
        await api.rows(back, actor=api.signed_actor(""))
    entries = [tuple(row) for row in await harness.database.rows(trail)]
    assert entries == [("grant.given", None), ("grant.revoked", "token of ada")]


async def test_a_version_that_signs_nothing_is_believed_while_one_of_its_replicas_is_alive(
    harness: Harness, api: Database
) -> None:
    with acting_for("ada"):
        await Chats(api).create("ada", "of ada", None, {})
    unsigned = "SELECT title FROM chats, set_config('turnstream.owner', 'ada', true)"
    connection = await asyncpg.connect(await embedded_api_url(harness.url))
    try:
        async with harness.locker() as locker:
            execute = locker.connection.execute
            await execute(
                "INSERT INTO replicas (id, address, session, lease_until)"
                " VALUES (gen_random_uuid(), 'old', 1, now() + interval '9 s')"
            )
            assert await connection.fetch(unsigned) != []
            await execute("UPDATE replicas SET lease_until = now() - interval '6 minutes' WHERE address = 'old'")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="the owner of this statement is not signed"):
            await connection.fetch(unsigned)
    finally:
        await connection.close()
