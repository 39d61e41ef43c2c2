"""SQL statements that an attacker injects into sessions with the API's role, while the server runs."""

import asyncio
import os
from collections.abc import Sequence

import asyncpg
import httpx2

from tests.bench.archive_attacks import ATTACKER, FOREIGN_CHAT, small_turn
from tests.support.injections import REFUSED
from turnstream.storage.row_security import admit, embedded_api_url

REFUSAL = "42501"
_SESSIONS = 8
_TIMES = 25  # executions of each statement in each session
# The statements need matching rows. Without them, a statement would change nothing and get no refusal.
_ASK = """
INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt)
VALUES ($1, 1, 'injected', 'look', 'approval', 'd', 1)
"""
_GRANT = """
INSERT INTO grants (id, chat_id, tool, digest, turn_id, tool_use_id) VALUES ($1, $2, 'look', 'd', $1, 'injected')
"""


def injected(client: httpx2.Client, _chat: str) -> Sequence[str]:
    """Returns the SQLSTATE of each refusal, and the names of the accepted statements."""
    turn = small_turn(client)
    return asyncio.run(_in_all_sessions(turn["chat_id"], turn["id"]))


async def _in_all_sessions(chat: str, turn: str) -> Sequence[str]:
    url = os.environ["DATABASE_URL"]
    api_url = await embedded_api_url(url)
    key = await admit(url, api_url)
    owner = await asyncpg.connect(url)
    try:
        await owner.execute(_ASK, turn)
        await owner.execute(_GRANT, turn, chat)
        values = {
            "owner": key.sign("owner", ATTACKER),
            "actor": key.sign("actor", ATTACKER),
            "bob": await owner.fetchval(FOREIGN_CHAT),
            "approve": '{"kind": "approve"}',
        }
    finally:
        await owner.close()
    statements = {name: attempt.format(**values) for name, attempt in REFUSED.items()}
    sessions = [_session(api_url, values["owner"], statements) for _ in range(_SESSIONS)]
    return sorted(set().union(*await asyncio.gather(*sessions)))


async def _session(api_url: str, signed_owner: str, statements: dict[str, str]) -> set[str]:
    outcomes = set()
    connection = await asyncpg.connect(api_url)
    try:
        await connection.execute("SELECT set_config('turnstream.owner', $1, false)", signed_owner)
        for _ in range(_TIMES):
            for name, statement in statements.items():
                try:
                    await connection.execute(statement)
                    outcomes.add(f"not refused: {name}")
                except asyncpg.PostgresError as refusal:
                    outcomes.add(refusal.sqlstate or f"{name}: {refusal}")
                await connection.execute("ROLLBACK")
            owners = {row["owner"] for row in await connection.fetch("SELECT DISTINCT owner FROM chats")}
            outcomes |= {f"a chat of {owner} was read" for owner in owners - {ATTACKER}}
    finally:
        await connection.close()
    return outcomes
