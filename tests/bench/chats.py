"""The cost of a turn in a long chat: the time to the first delta, and the longest hold of the event loop.

The server runs in this process, without sockets; the provider runs in another process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median

from tests.bench.database import new_database
from tests.bench.trials import Rows, Site
from turnstream.api.caller import CALLER
from turnstream.api.exchange import post_message
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services
from turnstream.config import Settings
from turnstream.domain.identity import Identity
from turnstream.domain.turns import TurnRequest
from turnstream.extensions.direct_calls.calls import DirectCalls
from turnstream.kit.ids import new_id
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.main import running
from turnstream.setup.parts import Given
from turnstream.storage.chats.exchanges import Target
from turnstream.storage.database import Database, Statement, connect
from turnstream.storage.rows import to_json
from turnstream.telemetry import configure_logging, settle_garbage_collector
from turnstream.tools.toolset import Toolset

_OWNER = "bench"
_WARM = 5  # turns from which the median is taken
_TICK = 0.002  # seconds between two ticks of the watch
_LOOK = 0.0005  # seconds
HELD_TARGET = 20.0  # ms
_WORDS = "What was said in a chat, as long as such things are. " * 8

# Questions and answers alternate, and each turn is the child of the turn before. Every answer has one round and one
# block.
INSERT_TURNS = Statement(
    """
    WITH chat AS (
        INSERT INTO chats (id, owner, title) VALUES (:chat, :owner, 'long') RETURNING id
    ), ids AS MATERIALIZED (
        SELECT number, gen_random_uuid() AS id FROM generate_series(1, CAST(:turns AS int)) AS number
    ), made AS (
        INSERT INTO turns (id, chat_id, parent_id, role, status, request, attempt, created_at, started_at, ended_at,
            stop_reason)
        SELECT ids.id, chat.id, before.id, CASE WHEN ids.number % 2 = 1 THEN 'user' ELSE 'assistant' END, 'complete',
            CASE WHEN ids.number % 2 = 0 THEN CAST(:request AS json) END, (ids.number + 1) % 2, at, at, at,
            CASE WHEN ids.number % 2 = 0 THEN 'end_turn' END
        FROM chat, ids LEFT JOIN ids AS before ON before.number = ids.number - 1,
            LATERAL (SELECT now() - interval '1 day' + ids.number * interval '1 second' AS at) AS times
        RETURNING id, role
    ), rounds AS (
        INSERT INTO rounds (turn_id, number, attempt, model, messages, usage, stop_reason, sealed_by,
            started_at, sealed_at)
        SELECT id, 1, 1, 'bench', 1, '{"input_tokens": 10, "output_tokens": 10}', 'end_turn', 1,
            now(), now()
        FROM made WHERE role = 'assistant'
    ), blocks AS (
        INSERT INTO blocks (turn_id, index, round, attempt, type, text)
        SELECT id, 0, CASE WHEN role = 'user' THEN 0 ELSE 1 END, CASE WHEN role = 'user' THEN 0 ELSE 1 END, 'text',
            CAST(:words AS text)
        FROM made
    )
    SELECT count(*) FROM made
    """
)


@dataclass
class Watch:
    """Measures the longest processor time of the event loop between two ticks, in ms. The caller resets this figure."""

    longest: float = 0.0

    async def run(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(_TICK)
            self.longest = max(self.longest, (time.thread_time() - before) * 1000)


def chats(*sizes: int) -> Callable[[Site], Rows]:
    """Measures turns in chats with `sizes` turns."""

    def run(site: Site) -> Rows:
        configure_logging("critical")
        with new_database(site.database.url) as database:
            return asyncio.run(_measured(site, database.url, sizes))

    return run


async def _measured(site: Site, url: str, sizes: Sequence[int]) -> Rows:
    rows: dict[str, tuple[float | None, ...]] = {}
    async with _server(site, url) as services, connect(url, size=2) as database:
        CALLER.set(Identity(_OWNER))
        watch = Watch()
        watching = asyncio.create_task(watch.run())
        target = await _chat(database, 2)
        for _ in range(3):  # turns with the one-time costs of a new process
            await _turn(services, target)
        settle_garbage_collector()  # like a server at its start
        for size in sizes:
            target = await _chat(database, size)
            watch.longest = 0.0
            cold = await _turn(services, target)
            warm = [await _turn(services, target) for _ in range(_WARM)]
            first, cpu = (median(figures) for figures in zip(*warm, strict=True))
            rows[f"{size:,} turns"] = (*cold, first, cpu, watch.longest, HELD_TARGET)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return rows


@asynccontextmanager
async def _server(site: Site, url: str) -> AsyncIterator[Services]:
    settings = Settings(_env_file=None, database_url=url, model="bench", port=0)
    async with (
        AnthropicProvider("key", site.provider.url, make_calls=DirectCalls) as provider,
        running(settings, Given(Models([ProviderModels(provider, ["bench"])]), Toolset(()))) as services,
    ):
        yield services


async def _chat(database: Database, turns: int) -> Target:
    chat, request = new_id(), to_json(TurnRequest("bench"))
    await database.rows(INSERT_TURNS, chat=chat, owner=_OWNER, turns=turns, request=request, words=_WORDS)
    await database.rows(Statement("ANALYZE"))
    return Target(_OWNER, chat)


async def _turn(services: Services, target: Target) -> tuple[float, float]:
    """Returns the milliseconds to the first delta, and the milliseconds of processor time that this process used to the
    end.
    """
    message = NewTurn.model_validate({"blocks": [{"type": "text", "text": "plan deltas=5 rate=0 chat=00a"}]})
    start, cpu = time.perf_counter(), time.process_time()
    exchange = await post_message(services, message, target, None)
    first, turn = 0.0, exchange.assistant_turn.id
    while (view := services.live.directory.running(turn)) is None:  # noqa: ASYNC110, it loads its path
        await asyncio.sleep(_LOOK)
    while not view.ended:
        if not first and (view.open_length or view.turn.blocks):
            first = time.perf_counter() - start
        await view.wakeup.wait()
    assert view.turn.status == "complete", view.turn.error
    while services.live.directory.running(turn):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK)
    return first * 1000, (time.process_time() - cpu) * 1000
