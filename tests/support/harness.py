"""Replicas in this process: real Postgres, real workers, scripted models, but no HTTP and no clocks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from tests.support.locks import Locker
from tests.support.stream_client import Client, encode
from turnstream.domain.blocks import Block
from turnstream.domain.charges import Charge, charges_of
from turnstream.domain.chats import Chat
from turnstream.domain.kinds import TEXT, TOOL_RESULT
from turnstream.domain.rounds import BilledTokens, add_usage
from turnstream.domain.turns import Limits, ToolSpec, Turn, TurnRequest
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.hooks import Hooks
from turnstream.engine.model_route import ModelPolicy
from turnstream.engine.retries import RetryPolicy
from turnstream.engine.text_checks import NO_CHECKS
from turnstream.engine.upkeep.journal_writer import JournalWriter
from turnstream.engine.upkeep.recovery import ReplicaMonitor
from turnstream.engine.upkeep.round_writer import RoundWriter
from turnstream.engine.worker import Worker, WorkerPolicy
from turnstream.kit.ids import new_id
from turnstream.kit.signals import Signals
from turnstream.libraries.guards.guard import Guard
from turnstream.llm.provider import Provider
from turnstream.storage.chats.actions import Actions
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.runs.journal import Journal
from turnstream.storage.runs.queue import Queue, WebhookKind
from turnstream.storage.runs.session import ReplicaSession
from turnstream.storage.runs.snapshots import Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.mirror import Mirror
from turnstream.stream.reader import follow
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

if TYPE_CHECKING:
    from tests.support.job_runner import KillableRunner

OWNER = "ada"
TICK = 0.01  # seconds
LOOK = 0.01  # seconds between looks of a mirror, by which a reader finds a turn that ended while its row was read
GET_CHARGES = Statement("SELECT * FROM charges WHERE turn_id = :turn AND kind = 'round'")
QUICK = RetryPolicy(most=3, base=0.0001, longest=0.0002, busy=0.0, max_retry_after=0.05)
# The intervals are so long that no test passes by polling: every wait needs its notification.
POLICY = WorkerPolicy(poll_interval=60, grace_period=60, model=ModelPolicy(QUICK, stall_timeout=60))


@dataclass(frozen=True)
class Asked:
    """The ids of an exchange: its chat, and the assistant turn that answers."""

    chat: UUID
    turn: UUID


class KillableWorker(Worker):
    """A worker that stops without its last writes once it is `killed`, so that its rows stay as they are."""

    killed = False

    @property
    def accounts(self) -> Accounts:
        """The accounts in which its turns reserve tokens and cost."""
        return self._services.accounts

    async def drain(self) -> None:
        if not self.killed:
            await super().drain()


@dataclass
class Replica:
    database: Database
    directory: Directory
    worker: KillableWorker
    queue: Queue
    rounds: RoundWriter
    journaling: JournalWriter
    jobs: "KillableRunner"
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def view(self, asked: Asked) -> LiveView:
        view = self.directory.running(asked.turn)
        assert view is not None
        return view

    async def cancel(self, asked: Asked) -> Turn:
        """Cancels the turn as the API does: writes the row, then sends the notification."""
        turn = await Turns(self.database).cancel(OWNER, asked.chat, asked.turn)
        await self.worker.cancel(turn.id)
        return turn

    async def store_open(self) -> None:
        """Does one tick of the writers of open rounds and open text."""
        await self.rounds.flush()
        await self.journaling.tick()

    async def idle(self, asked: Asked) -> None:
        """Waits until the turn does not run on this replica."""
        while view := self.directory.running(asked.turn):
            await view.wakeup.wait()

    async def stop(self) -> None:
        """Stops the replica like a process that shuts down."""
        await self._end()
        await self.queue.leave()

    async def kill(self) -> None:
        """Stops the replica like a killed process, so that its rows stay as they are."""
        self.worker.killed = self.jobs.killed = True
        await self._end()

    async def _end(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            # If the test stops its database, the pending writes of a killed replica may fail before the cancellation.
            assert self.worker.killed or isinstance(outcome, asyncio.CancelledError), outcome


@dataclass
class Harness:
    url: str
    database: Database
    webhooks: Collection[WebhookKind] = ()  # the kinds that its replicas send

    async def ask(
        self,
        content: str = "Hello",
        *,
        after: Asked | None = None,
        limits: Limits | None = None,
        tools: Iterable[Tool | ToolSpec] = (),
        **request: Any,
    ) -> Asked:
        """Posts a turn, without a notification to any worker."""
        specs = tuple(tool if isinstance(tool, ToolSpec) else tool.spec for tool in tools)
        asked = TurnRequest(request.pop("model", "scripted"), tools=specs, limits=limits or Limits(), **request)
        now = datetime.now(UTC)
        chat = Chat(after.chat if after else new_id(), OWNER, None, None, {}, created_at=now, updated_at=now)
        exchanges = Exchanges(self.database)
        drafting = exchanges.after(Target(OWNER, chat.id), None) if after else exchanges.in_new_chat(chat, None)
        async with drafting as draft:
            exchange = await draft.create([Block(0, 0, 0, TEXT, content)], asked, None)
        return Asked(chat.id, exchange.assistant_turn.id)

    @asynccontextmanager
    async def replica(
        self,
        provider: Provider | Callable[[str], Provider],
        tools: Iterable[Tool] = (),
        *,
        policy: WorkerPolicy = POLICY,
        address: str | None = None,
        toolset: Toolset | None = None,
        listens: bool = False,
        hooks: Sequence[Hooks] = (),
        most_jobs: int = 10,
        guards: Sequence[Guard] = (),
    ) -> AsyncIterator[Replica]:
        """Runs a replica. `address` is the address of a replaced replica. With `listens`, the replica gets
        notifications, which jobs need.
        """
        directory, clock, signals = Directory(), FrameClock(), Signals()
        session = hash(new_id()) % 2**62
        queue = Queue(self.database, new_id(), address or str(new_id()), session, self.webhooks, extensions=["search"])
        provider_for = provider if callable(provider) else lambda _: provider
        toolset = toolset or Toolset(tools, max_result_chars=1000, patience=TICK)
        checks = Guard.joined(guards, policy.plans) if guards else NO_CHECKS
        # These modules are imported here, because the harness must also load without the extensions that they need.
        from tests.support.call_policies import policies_for  # noqa: PLC0415
        from tests.support.job_runner import runner_for  # noqa: PLC0415

        worker = KillableWorker(
            self.database,
            queue,
            directory,
            provider_for,
            toolset,
            policy,
            clock,
            hooks,
            checks=checks,
            call_policies=policies_for(self.database, toolset, policy),
        )
        jobs = runner_for(queue, toolset, policy.plans, checks, signals, most_jobs, policy.poll_interval)
        rounds = RoundWriter(self.database, directory, TICK)
        journaling = JournalWriter(Journal(self.database, queue.replica), directory, TICK)
        opened = asyncio.Event()
        work: list[Coroutine[Any, Any, None]] = [
            rounds.run(),
            journaling.run(),
            Mirror(Snapshots(self.database), directory, LOOK).run(),
            *([ReplicaSession(self.url, session, signals.notified.send, on_open=opened.set).run()] if listens else []),
        ]
        worker.follow(signals)
        await ReplicaMonitor(queue, Actions(self.database), 60, signals).start()
        replica = Replica(self.database, directory, worker, queue, rounds, journaling, jobs)
        replica.tasks = [
            asyncio.create_task(worker.run()),
            asyncio.create_task(jobs.run()),
            *map(asyncio.create_task, work),
        ]
        try:
            if listens:
                await opened.wait()
            while not worker._woken._waiters:  # noqa: ASYNC110, a worker has no event for it
                await asyncio.sleep(0)  # wait for the end of the first poll: later turns are not part of it
            yield replica
        except BaseException:
            await replica.kill()  # a failed test does not wait for its turns
            raise
        await replica.stop()

    @asynccontextmanager
    async def locker(self) -> AsyncIterator[Locker]:
        """Yields a second connection, to hold locks and to change rows."""
        connection, watcher = await asyncpg.connect(self.url), await asyncpg.connect(self.url)
        try:
            yield Locker(connection, watcher)
        finally:
            await connection.close()
            await watcher.close()

    async def turn(self, asked: Asked) -> Turn:
        return await Turns(self.database).get(OWNER, asked.chat, asked.turn)

    async def follow(self, replica: Replica, asked: Asked, client: Client | None = None) -> Client:
        """Reads the turn's stream to its end. Checks that the assembled turn equals the rows."""
        return await self._read(replica, asked, replica.directory.view(await self.turn(asked)), client or Client())

    async def _read(self, replica: Replica, asked: Asked, view: LiveView, client: Client) -> Client:
        async for frames in follow(replica.directory, view, lambda: self.turn(asked), client.cursor, encode):
            client.take(frames)
        return client

    async def finish(self, replica: Replica, asked: Asked) -> Turn:
        """Wakes the worker. Returns the turn when it has ended and all its invariants were checked. A reader attaches
        before the worker wakes, so a test that changes the rows of the running turn cannot change what the reader
        receives first.
        """
        view = replica.directory.view(await self.turn(asked))
        replica.worker.wake()
        client = await self._read(replica, asked, view, Client())
        await replica.idle(asked)
        turn = await self.turn(asked)
        client.assert_holds(turn)
        again = await self.follow(replica, asked)
        again.assert_holds(turn)
        assert_is_whole(turn)
        assert await self.charged(turn.id) == {each.call: each for each in charges_of(turn.rounds, turn)}
        return turn

    async def charged(self, turn: UUID) -> dict[str, Charge]:
        """Returns the charges of the turn's rounds from the ledger."""
        rows = await self.database.rows(GET_CHARGES, turn=turn)
        kinds = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
        return {
            row["call"]: Charge(
                row["kind"],
                row["call"],
                row["model"],
                BilledTokens(*(row[kind] for kind in kinds)),
                None if row["cost"] is None else float(row["cost"]),
            )
            for row in rows
        }


def assert_is_whole(turn: Turn) -> None:
    """Checks the invariants of every ended turn."""
    assert turn.ended
    assert [block.index for block in turn.blocks] == list(range(len(turn.blocks)))
    calls = Counter((block.round, block.tool_use_id) for block in turn.blocks if block.is_call)
    results = Counter((block.round, block.tool_use_id) for block in turn.blocks if block.type == TOOL_RESULT)
    assert calls == results
    assert set(calls.values()) <= {1}
    assert all(round.sealed or round.voided for round in turn.rounds)
    sealed = [round.number for round in turn.rounds if round.sealed]
    assert sealed == list(range(1, len(sealed) + 1))
    assert {block.round for block in turn.blocks} <= {0, *sealed}
    none: dict[str, Any] = {}
    assert turn.usage == reduce(add_usage, (round.usage for round in turn.rounds), none)


def results_of(turn: Turn) -> dict[str, Block]:
    """Returns the results of a turn, by the call that each result answers."""
    return {block.tool_use_id or "": block for block in turn.blocks if block.type == TOOL_RESULT}


def texts_of(turn: Turn) -> list[str]:
    return [block.text for block in turn.blocks if block.type == TEXT]


def with_model(policy: WorkerPolicy, **changes: Any) -> WorkerPolicy:
    return replace(policy, model=replace(policy.model, **changes))


async def rows_of(database: Database, asked: Asked) -> Sequence[Sequence[Any]]:
    """Returns all rows of a turn, for a later comparison."""
    tables = ("turns", "rounds", "blocks", "tool_calls")
    async with database.transaction() as connection:
        raw = connection.raw
        keys = {"turns": "id"}
        return [
            [tuple(row) for row in await raw.fetch(_rows(table, keys.get(table, "turn_id")), asked.turn)]
            for table in tables
        ]


def _rows(table: str, key: str) -> str:
    return f"SELECT {table}::text FROM {table} WHERE {key} = $1 ORDER BY 1"
