"""Random schedules: turns and readers on three replicas, while replicas and Postgres have faults.

The seed determines the schedule, but the order of events on the machine differs from run to run. One site runs many
schedules, one after another: they share two Postgres, a growing database, and a process that forks replicas.
"""

import asyncio
import random
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Literal, assert_never, get_args
from uuid import UUID

from tests.faults.postgres import Pair, own_pair
from tests.faults.processes import Process
from tests.faults.reader import Reader
from tests.faults.rows import problems_of
from tests.faults.stage import Stage, staged
from tests.faults.wrong_clock import clock_off_by
from tests.support.server_process import free_port
from turnstream.domain.turns import RecoveryPolicy, Turn
from turnstream.storage.database import Statement, retry_while_unavailable
from turnstream.storage.migrations import upgrade_in_thread

FaultOfPostgres = Literal["freeze", "stall", "lock", "read-only", "impatient", "cut", "crash", "failover"]

REPLICAS = 3
TURNS = 10
READERS_OF_A_TURN = 2
ROUNDS_OF_FAULTS = 4
FAULTY_SECONDS = 60  # no fault begins after so many seconds, so a loaded machine has fewer faults
PATIENCE = 180  # a schedule has halted when no reader has received an event for so many seconds
# A frozen replica loses its lease and wakes up as a zombie. On a loaded machine, a live replica would repeatedly lose a
# short lease, and its turns. So the lease depends on how long a server takes to start on this machine.
LEASE = 0.8  # seconds, on a quiet machine
QUIET_START = 0.2  # seconds that a server takes to start on a quiet machine
# The intervals of the periodic work of replicas, as shares of the lease.
_INTERVALS = {
    "TURNSTREAM_JOURNAL_INTERVAL": 1 / 40,
    "TURNSTREAM_POLL_INTERVAL": 1 / 8,
    "FAULTS_MONITOR_INTERVAL": 1 / 8,
}
_FAULTS_OF_POSTGRES: Sequence[FaultOfPostgres] = get_args(FaultOfPostgres)
# Settings that an operator makes for all sessions: a planned switchover, and limits that are too short.
_SETTINGS: Mapping[FaultOfPostgres, Mapping[str, str]] = {
    "read-only": {"default_transaction_read_only": "on"},
    "impatient": {
        "statement_timeout": "20ms",
        "idle_in_transaction_session_timeout": "5ms",
        "idle_session_timeout": "500ms",
    },
}
_SKEWS = (0, 0, 600, -600)  # seconds by which the clocks of replicas may be wrong

# Records every block, round and call that a claim writes while the turn has another attempt or is not running. It
# ignores a statement that ends the turn itself, because that statement may end the turn first. A later claim writes an
# interrupted round again, under the attempt that began it; that write finds the row, and so it is no insertion.
_WATCH_FOR_ZOMBIES = """
CREATE TABLE stale_writes (what text, turn uuid, attempt int, owned_by int);
CREATE FUNCTION note_stale_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stale_writes
    SELECT TG_TABLE_NAME || ' ' || NEW::text, id, NEW.attempt, turns.attempt FROM turns
    WHERE id = NEW.turn_id AND (
        turns.attempt <> NEW.attempt OR (status <> 'running' AND turns.xmin <> pg_current_xact_id()::xid)
    );
    RETURN NEW;
END $$;
CREATE TRIGGER fence AFTER INSERT ON rounds FOR EACH ROW EXECUTE FUNCTION note_stale_write();
CREATE TRIGGER fence BEFORE INSERT OR UPDATE ON tool_calls FOR EACH ROW EXECUTE FUNCTION note_stale_write();
CREATE TRIGGER fence BEFORE INSERT ON blocks FOR EACH ROW WHEN (NOT NEW.interrupted AND NEW.round > 0)
    EXECUTE FUNCTION note_stale_write();
"""
_STALE_WRITES = Statement("SELECT * FROM stale_writes WHERE turn = ANY(CAST(:turns AS uuid[]))")
_CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TURNS_AT = Statement(
    "SELECT count(*) FROM turns JOIN replicas ON replicas.id = replica WHERE status = 'running' AND address LIKE :port"
)


class Site:
    """The stage on which schedules run, one after another."""

    def __init__(self, pair: Pair, stage: Stage) -> None:
        self.pair = pair
        self.stage = stage
        self.starts: deque[float] = deque(maxlen=3 * REPLICAS)  # the seconds that recent starts of servers took

    async def end(self, server: Process) -> None:
        await server.kill()
        if server.ready_after is not None:
            self.starts.append(server.ready_after)

    @property
    def lease(self) -> float:
        """The lease in seconds that suits the present load of this machine. The lower quarter of the start times
        counts, because half of the servers may have waited for Postgres at their start.
        """
        usual = sorted(self.starts)[len(self.starts) // 4]
        return LEASE * min(8.0, max(1.0, usual / QUIET_START))


@asynccontextmanager
async def site_in(folder: Path) -> AsyncIterator[Site]:
    async with own_pair(folder) as pair:
        await upgrade_in_thread(pair.url)
        async with staged(pair.url, folder, None, True, GRACE_PERIOD="0") as stage:
            stage.fork_server.environment.update(FAULTS_PACE="0.03", FAULTS_NOTIFICATIONS_LOST="0.5")
            await stage.connection.execute(_WATCH_FOR_ZOMBIES)
            site = Site(pair, stage)
            first = await stage.fork_server.server(TURNSTREAM_PORT=str(free_port()))
            await first.ready.wait()
            await site.end(first)
            yield site


class Progress:
    """The progress of a schedule, measured by the events of all its readers. The schedule may be as slow as the
    machine, but must not halt.
    """

    def __init__(self) -> None:
        self._open: dict[Reader, Turn] = {}
        self._made = asyncio.Event()

    @contextmanager
    def of(self, reader: Reader, turn: Turn) -> Iterator[None]:
        """Counts the reader as waiting for as long as the block runs."""
        self._open[reader] = turn
        yield
        del self._open[reader]
        self.made()

    def made(self) -> None:
        self._made.set()

    async def watch(self) -> None:
        """Raises TimeoutError if no event comes for too long. Prints the stacks of all waiting tasks before that."""
        try:
            while True:
                self._made.clear()
                async with asyncio.timeout(PATIENCE):
                    await self._made.wait()
        except TimeoutError:
            for task in asyncio.all_tasks():
                task.print_stack()
            waiting = ", ".join(f"of turn {turn.id} at {reader.cursor}" for reader, turn in self._open.items())
            raise TimeoutError(f"no event for {PATIENCE} s; readers that wait: {waiting or 'none'}") from None


class Replica:
    """An address with changing processes. Like a service manager, it starts a new process after a process has exited. A
    server that starts during an outage of Postgres also exits.
    """

    def __init__(self, site: Site, lease: float, skew: int, log: Path) -> None:
        self.port = free_port()
        self.process: Process | None = None
        self._site = site
        self._lease = lease
        self._log = log
        self._settings = {
            "TURNSTREAM_PORT": str(self.port),
            "TURNSTREAM_LEASE": str(lease),
            "FAULTS_LOG": str(log),
            **{name: str(lease * share) for name, share in _INTERVALS.items()},
            **clock_off_by(skew),
        }
        self._pause = 0.0

    async def run(self) -> None:
        """Starts processes until it is cancelled."""
        while True:
            self.process = await self._site.stage.fork_server.server(**self._settings)
            await self.process.dead.wait()
            await self._site.end(self.process)
            await asyncio.sleep(self._pause)

    async def inject_fault(self, chance: random.Random) -> None:
        """Injects one fault. If the process dies, `run` starts the next process."""
        process, self._pause = self.process, chance.choice([0.1, 0.1, self._lease])
        fault, length = chance.choice(["kill", "kill", "freeze", "freeze", "terminate"]), chance.uniform(0.5, 3)
        if process is None or process.dead.is_set():
            return
        match fault:
            case "freeze":
                with process.frozen():
                    await asyncio.sleep(self._lease * length)
            case "kill":
                await process.kill()
            case _:
                process.signal(signal.SIGTERM)
                await process.dead.wait()

    async def become_stale(self, shows: "asyncio.Task[object]") -> None:
        """Freezes the replica until other replicas have taken over all its turns, or the turns have ended. After it
        wakes up, the replica notices the loss.
        """
        await _until(self._has_turns, shows)
        if self.process is not None and not shows.done():
            with self.process.frozen():
                await _until(self._has_none, shows)
            await _until(self._has_lost_its_claims, shows)

    async def _has_lost_its_claims(self) -> bool:
        return "claim.lost" in self._log.read_text()

    async def _has_none(self) -> bool:
        return not await self._has_turns()

    async def _has_turns(self) -> bool:
        row = await self._site.stage.database.row(_TURNS_AT, port=f"%:{self.port}")
        return row is not None and row["count"] > 0


async def _until(happened: Callable[[], Awaitable[bool]], shows: "asyncio.Task[object]") -> None:
    while not (shows.done() or await happened()):  # noqa: ASYNC110, it happens in another process
        await asyncio.sleep(0.05)


async def problems_of_schedule(site: Site, seed: int) -> list[str]:
    """Raises a group: TimeoutError if all readers wait in vain, and the failed assertions of readers."""
    chance = random.Random(seed)
    lease, log = site.lease, site.stage.folder / f"servers-{seed}.log"
    replicas = [Replica(site, lease, chance.choice(_SKEWS), log) for _ in range(REPLICAS)]
    progress = Progress()
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each) for each in (progress.watch(), *(replica.run() for replica in replicas))]
            shows = group.create_task(_run_all_turns(site.stage, replicas, chance, progress))
            faults = group.create_task(_all_faults(site.pair, replicas, lease, chance, shows))
            await asyncio.wait([shows, faults])
            for each in running:
                each.cancel()
    finally:
        for replica in replicas:
            if replica.process is not None:
                await replica.process.kill()
    turns = shows.result()
    stale = await retry_while_unavailable(lambda: site.stage.database.rows(_STALE_WRITES, turns=[*turns]))
    return [*chain.from_iterable(turns.values()), *(f"stale write {dict(row)}" for row in stale)]


async def _all_faults(
    pair: Pair, replicas: list[Replica], lease: float, chance: random.Random, shows: "asyncio.Task[object]"
) -> None:
    """Injects faults until all turns have ended. Never stops all replicas at once for long, so that work continues."""
    if chance.random() < 0.3:
        await chance.choice(replicas).become_stale(shows)
    until = monotonic() + FAULTY_SECONDS
    for _ in range(ROUNDS_OF_FAULTS):
        if shows.done() or monotonic() > until:
            break
        faults = [replica.inject_fault(chance) for replica in chance.sample(replicas, REPLICAS - 1)]
        if chance.random() < 0.4:
            faults.append(_inject_fault_of_postgres(pair, replicas, lease, chance))
        await asyncio.gather(*faults)


async def _inject_fault_of_postgres(pair: Pair, replicas: list[Replica], lease: float, chance: random.Random) -> None:
    fault, seconds = chance.choice(_FAULTS_OF_POSTGRES), lease * chance.uniform(0.5, 3)
    match fault:
        case "freeze":
            with pair.primary.frozen():
                await asyncio.sleep(seconds)
        case "stall":  # the whole machine stalls
            with ExitStack() as stall:
                stall.enter_context(pair.primary.frozen())
                for replica in replicas:
                    if replica.process is not None:
                        stall.enter_context(replica.process.frozen())
                await asyncio.sleep(seconds)
        case "lock":  # like a change of the schema
            async with pair.primary.connected() as connection, connection.transaction():
                await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(seconds)
        case "read-only" | "impatient":
            await _set(pair, {name: f"= '{value}'" for name, value in _SETTINGS[fault].items()})
            await asyncio.sleep(seconds)
            await _set(pair, dict.fromkeys(_SETTINGS[fault], "TO DEFAULT"))
        case "cut":
            async with pair.primary.connected() as connection:
                await connection.execute(_CUT)
        case "crash":
            await pair.primary.stop(signal.SIGQUIT)
            await asyncio.sleep(seconds)
            await pair.primary.start()
        case "failover":
            await pair.fail_over(seconds)
        case _:
            assert_never(fault)


async def _set(pair: Pair, settings: Mapping[str, str]) -> None:
    async with pair.primary.connected() as connection:
        for own in ("default_transaction_read_only = off", "statement_timeout = 0", "idle_session_timeout = 0"):
            await connection.execute(f"SET {own}")
        for name, value in settings.items():
            await connection.execute(f"ALTER SYSTEM SET {name} {value}")
        await connection.execute("SELECT pg_reload_conf()")


async def _run_all_turns(
    stage: Stage, replicas: list[Replica], chance: random.Random, progress: Progress
) -> dict[UUID, list[str]]:
    """Returns the problems of each turn."""
    async with asyncio.TaskGroup() as group:
        shows = {}
        for _ in range(TURNS):
            policy: RecoveryPolicy = chance.choice(["retry", "continue"])
            turn = await retry_while_unavailable(partial(stage.ask, policy, max_recoveries=1000))
            show = _problems_of_turn(stage, replicas, turn, random.Random(chance.random()), progress)
            shows[turn.id] = group.create_task(show)
            await asyncio.sleep(chance.uniform(0, 0.6))
    return {turn: show.result() for turn, show in shows.items()}


async def _problems_of_turn(
    stage: Stage, replicas: list[Replica], turn: Turn, chance: random.Random, progress: Progress
) -> list[str]:
    """Returns the problems of a turn, after all its readers have received its end."""
    readers = [stage.reader(turn) for _ in range(READERS_OF_A_TURN)]

    async def read(reader: Reader) -> None:
        with progress.of(reader, turn):
            await _read_on_changing_replicas(reader, replicas, chance, progress)

    await asyncio.gather(*map(read, readers))
    rows, effects = await retry_while_unavailable(partial(stage.rows, turn)), stage.effects
    return [f"turn {turn.id}: {problem}" for reader in readers for problem in problems_of(rows, reader, effects)]


async def _read_on_changing_replicas(
    reader: Reader, replicas: list[Replica], chance: random.Random, progress: Progress
) -> None:
    """Reads on changing replicas. The reader disconnects from time to time, even in the middle of an event, and leaves
    frozen replicas. After a failed try it waits longer. Otherwise the servers of a loaded machine would serve only
    readers that have already disconnected.
    """
    whole, patience = False, 1.5
    while not whole:
        cursor = reader.cursor
        try:
            async with asyncio.timeout(chance.uniform(0.05, patience)):
                whole = await reader.read(chance.choice(replicas).port)
        except TimeoutError:
            patience = 1.5 if reader.cursor > cursor else min(2 * patience, 30.0)
            continue
        finally:
            if reader.cursor > cursor:
                progress.made()
        await asyncio.sleep(chance.uniform(0.01, 0.1))
