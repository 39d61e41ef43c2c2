"""A database, a fork server, and the turns that a test creates."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg

from tests.faults.effects import Effects, effects_service
from tests.faults.processes import ForkServer, fork_server
from tests.faults.reader import Reader
from tests.faults.rows import Rows
from tests.faults.script import MODEL, tools
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.domain.turns import Limits, RecoveryPolicy, Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import Exchanges
from turnstream.storage.database import Database, connect

BUDGET = 100_000  # tokens, more than any turn here uses
_SERVER_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'server'"
)


@dataclass(frozen=True)
class Stage:
    folder: Path
    fork_server: ForkServer
    database: Database
    connection: "asyncpg.Connection[asyncpg.Record]"
    counted: Effects

    async def ask(self, policy: RecoveryPolicy, max_recoveries: int = 3, root: UUID | None = None) -> Turn:
        """Creates a queued turn. With a `root`, the turn shares a budget with the family of that turn."""
        now = datetime.now(UTC)
        chat = Chat(new_id(), LOCAL_OWNER, None, None, {}, created_at=now, updated_at=now)
        specs = tuple(tool.spec for tool in tools(self.counted.port))
        budget = None if root is None else BUDGET
        limits = Limits(recovery=policy, max_recoveries=max_recoveries, budget_tokens=budget)
        request = TurnRequest(MODEL, "", {}, specs, limits, root_turn=root)
        async with Exchanges(self.database).in_new_chat(chat, None) as draft:
            exchange = await draft.create([Block(0, 0, 0, "text", "Go.")], request, None)
        return exchange.assistant_turn

    def reader(self, turn: Turn) -> Reader:
        return Reader(f"/api/chats/{turn.chat_id}/turns/{turn.id}/stream")

    async def rows(self, turn: Turn) -> Rows:
        return await Rows.of(self.database, turn)

    async def alone(self) -> None:
        """Waits until Postgres has ended the connections of dead servers, and with them their last statements."""
        while await self.connection.fetchval(_SERVER_CONNECTIONS):  # noqa: ASYNC110, Postgres does not notify of this
            await asyncio.sleep(0.002)

    @property
    def effects(self) -> Counter[str]:
        """Returns how often each idempotency key was sent to the service of effects."""
        return self.counted.requests


@asynccontextmanager
async def staged(
    database_url: str, folder: Path, monitor_interval: float | None = None, may_skew: bool = False, /, **settings: str
) -> AsyncIterator[Stage]:
    tagged_url = f"{database_url}{'&' if '?' in database_url else '?'}application_name=server"
    environment = {f"TURNSTREAM_{name}": value for name, value in settings.items()}
    connection = await asyncpg.connect(database_url)
    try:
        async with (
            connect(database_url, size=2) as database,
            effects_service() as effects,
            fork_server(folder, monitor_interval, may_skew, DATABASE_URL=tagged_url, **environment) as server,
        ):
            server.environment["FAULTS_EFFECTS"] = str(effects.port)
            yield Stage(folder, server, database, connection, effects)
    finally:
        await connection.close()
