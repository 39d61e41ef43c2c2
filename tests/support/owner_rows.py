"""An owner with a row of every kind, and all rows of a database for comparisons."""

import asyncpg

from tests.support.harness import OWNER, Asked, Harness
from turnstream.domain.identity import Identity
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.documents.store import Documents
from turnstream.kit.ids import new_id
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.owners.uploads import Uploads

LAMP = ToolSpec("lamp", "Turns the lamp on.", '{"type":"object","n":1.50}', client=True)
HELLO = ScriptedProvider(lambda _: message_of(text("Hel", "lo.")))


async def fill_owner(harness: Harness) -> Asked:
    """Inserts a row of every kind for the owner, and some rows of another owner. Returns the second exchange of the
    first chat.
    """
    async with harness.replica(HELLO) as replica:
        first = await harness.ask()
        await harness.finish(replica, first)
        second = await harness.ask("And again?", after=first, tools=[LAMP])
        await harness.finish(replica, second)
        await harness.finish(replica, await harness.ask("Another chat"))
    upload = await Uploads(harness.database).put(OWNER, "text/plain", b"some bytes \x00\xff")
    await Documents(harness.database).put(OWNER, "notes/tides.md", "The moon.\nAnd the sun.")
    await Documents(harness.database).put("other", "notes/tides.md", "Another's.")
    await Tokens(harness.database).create("phone", Identity(OWNER))
    connection = await asyncpg.connect(harness.url)
    turn = second.turn
    await connection.execute(
        """INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
        VALUES ($1, 9, 1, 1, 'document', '', $2)""",
        turn,
        f'{{"source": {{"type": "upload",\r\n "id": "{upload.id}"}},  "n": 1.50}}',
    )
    await connection.execute(
        """INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt, answer, answered_at)
        VALUES ($1, 1, 't', 'send', 'approval', 'd', 1, '{"kind":"approve"}', now())""",
        turn,
    )
    await connection.execute(
        "INSERT INTO steers (id, turn_id, blocks, taken_at) VALUES ($1, $2, '[]', now())", new_id(), turn
    )
    await connection.execute(
        """INSERT INTO grants (id, chat_id, tool, digest, "when", turn_id, tool_use_id)
        VALUES ($1, $2, 'send', 'd', '{"to":{"const":"ada"}}', $3, 't')""",
        new_id(),
        first.chat,
        turn,
    )
    await connection.execute(
        "INSERT INTO tool_calls (turn_id, round, tool_use_id, name, attempt, state, started_at, settled_at)"
        " VALUES ($1, 1, 't', 'send', 1, 'settled', now(), now())",
        turn,
    )
    await connection.execute(
        "INSERT INTO idempotency_keys (owner, key, digest, turn_id) VALUES ($1, 'k', 'd', $2)", OWNER, turn
    )
    await connection.execute(
        "INSERT INTO tool_cache (owner, key, tool, content, size, expires_at)"
        " VALUES ($1, decode(repeat('00', 32), 'hex'), 'send', 'x', 1, now())",
        OWNER,
    )
    await connection.execute(
        "INSERT INTO shares (id, chat_id, digest, live, results, files) VALUES ($1, $2, 'd', true, false, true)",
        new_id(),
        first.chat,
    )
    await connection.execute(
        "INSERT INTO chat_members (chat_id, member, role, created_by) VALUES ($1, 'bob', 'write', 'owner:ada')",
        first.chat,
    )
    await connection.execute("INSERT INTO erasures (owner, due_at) VALUES ($1, '2100-01-01')", OWNER)
    await connection.execute(
        "INSERT INTO sign_ins (owner, server, issuer, scopes, tokens, signed_in_at, state, pending, pending_until)"
        " VALUES ($1, 'calendar', 'https://login.example.com', '{read}', 'sealed', now(), 'x', 'sealed', now())",
        OWNER,
    )
    await connection.execute("INSERT INTO webhooks (turn_id) VALUES ($1)", turn)
    await connection.execute("INSERT INTO open_text VALUES ($1, 1, 99, 0, 1, 'text', NULL, NULL, 'open')", turn)
    await connection.close()
    return second


async def rows_of(url: str, *, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Returns all rows of a database by table, except the key of its servers. The database of an earlier version lacks
    some tables.
    """
    connection = await asyncpg.connect(url)
    try:
        present = {row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables")}
        return {
            name: [row[0] for row in rows]
            for name in sorted(present & ALL_TABLES.keys())
            if name not in (*without, "signing_key")
            and (rows := await connection.fetch(f"SELECT {name}::text FROM {name} ORDER BY 1"))
        }
    finally:
        await connection.close()
