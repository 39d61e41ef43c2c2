"""Three replicas on one database: killed, stopped, frozen, while turns run and readers wander. The database is frozen,
crashes, and cuts its sessions.

A schedule is drawn from FAULTS_SEED, which is printed. What the machine makes of it differs from run to run. `make
soak` draws one after another and keeps the seeds that failed in seeds.txt; each run of this test tries those again.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic

import asyncpg
import pytest

from app.domain.turns import RecoveryPolicy, Turn
from app.storage.database import Statement, retry_while_unavailable
from app.storage.migrations import upgrade_in_thread
from tests.faults.postgres import Postgres, own_postgres
from tests.faults.processes import Process
from tests.faults.reader import Reader
from tests.faults.rows import problems_of
from tests.faults.stage import Stage, staged
from tests.support.effort import FULL
from tests.support.server_process import free_port

REPLICAS = 3
TURNS = 60 if FULL else 25
READERS_OF_A_TURN = 2
FAULTS = 30 if FULL else 12
FAULTY_SECONDS = 60  # no fault begins after so long: a loaded machine has fewer of them
# A frozen replica loses its lease and wakes up as a zombie. On a loaded machine a live one would lose a short lease
# too, over and over and its turns with it, so the lease follows the time that this machine takes to start a server.
LEASE = 0.8  # seconds, on a quiet machine
QUIET_START = 0.25  # seconds that a server takes to start there
_SETTINGS = {
    "JOURNAL_INTERVAL": "0.02",
    "POLL_INTERVAL": "0.1",
    "GRACE_PERIOD": "0",
}

# Those that have failed once, and a new one.
_SEEDS = (
    [int(os.environ["FAULTS_SEED"])]
    if "FAULTS_SEED" in os.environ
    else [*map(int, Path(__file__).with_name("seeds.txt").read_text().split()), None]
)

# Every block, round and call that a claim writes which is not the turn's own at that moment. A statement that also ends
# the turn may have ended it first. A later claim writes an interrupted round again, under the attempt that began it:
# after the write, that is no insertion.
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


_STALE_WRITES = Statement("SELECT * FROM stale_writes")
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
_TURNS_AT = Statement(
    "SELECT count(*) FROM turns JOIN replicas ON replicas.id = replica WHERE status = 'running' AND address LIKE :port"
)


class Replica:
    """An address at which processes come and go. One that ends is followed by the next, as a service manager does it: a
    server that starts while Postgres is away ends, too.
    """

    def __init__(self, stage: Stage, lease: float) -> None:
        self.port = free_port()
        self._stage = stage
        self._lease = lease
        self._process: Process | None = None
        self._pause = 0.0

    async def run(self) -> None:
        """Starts processes for ever."""
        settings = {"TURNSTREAM_PORT": str(self.port), "TURNSTREAM_LEASE": str(self._lease)}
        while True:
            self._process = await self._stage.fork_server.server(**settings)
            await self._process.dead.wait()
            await asyncio.sleep(self._pause)

    async def inject_fault(self, chance: random.Random) -> None:
        """One fault; `run` starts the next process."""
        process, self._pause = self._process, chance.choice([0.1, 0.1, self._lease])
        fault, length = chance.choice(["kill", "kill", "freeze", "freeze", "terminate"]), chance.uniform(0.5, 3)
        if process is None or process.dead.is_set():
            return
        match fault:
            case "freeze":
                process.signal(signal.SIGSTOP)
                await asyncio.sleep(self._lease * length)
                process.signal(signal.SIGCONT)
            case "kill":
                await process.kill()
            case _:
                process.signal(signal.SIGTERM)
                await process.dead.wait()

    async def become_stale(self) -> None:
        """It is frozen with turns at hand, until others have them all, and finds out when it wakes up."""
        await _until(self._has_turns)
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)
        await _until(self._has_none)
        self._process.signal(signal.SIGCONT)
        await _until(self._has_lost_its_claims)

    async def _has_lost_its_claims(self) -> bool:
        return "claim.lost" in (self._stage.folder / "servers.log").read_text()

    async def _has_none(self) -> bool:
        return not await self._has_turns()

    async def _has_turns(self) -> bool:
        row = await self._stage.database.row(_TURNS_AT, port=f"%:{self.port}")
        return row is not None and row["count"] > 0


async def _inject_fault_of_postgres(postgres: Postgres, lease: float, chance: random.Random) -> None:
    match chance.choice(["freeze", "freeze", "cut", "crash"]):
        case "freeze":
            with postgres.frozen():
                await asyncio.sleep(lease * chance.uniform(0.5, 3))
        case "cut":
            connection = await asyncpg.connect(postgres.url)
            await connection.execute(_CUT)
            await connection.close()
        case _:  # what a failover to a synchronous standby at the same address looks like
            await postgres.stop(signal.SIGQUIT)
            await asyncio.sleep(lease * chance.uniform(0, 2))
            await postgres.start()


async def _until(happened: Callable[[], Awaitable[bool]]) -> None:
    while not await happened():  # noqa: ASYNC110, it happens in another process
        await asyncio.sleep(0.01)


@pytest.fixture
async def postgres(tmp_path: Path) -> AsyncIterator[Postgres]:
    async with own_postgres(tmp_path) as postgres:
        await upgrade_in_thread(postgres.url)
        yield postgres


@pytest.fixture
async def stage(postgres: Postgres, tmp_path: Path) -> AsyncIterator[Stage]:
    faults = {"FAULTS_PACE": "0.03", "FAULTS_NOTIFICATIONS_LOST": "0.5"}
    async with staged(postgres.url, tmp_path, 0.1, **_SETTINGS) as stage:
        stage.fork_server.environment.update(faults)
        await stage.connection.execute(_WATCH_FOR_ZOMBIES)
        yield stage


async def _lease_for_this_machine(stage: Stage) -> float:
    slowest = 0.0
    for _ in range(REPLICAS):
        begun = monotonic()
        process = await stage.fork_server.server(TURNSTREAM_PORT=str(free_port()))
        await process.ready.wait()
        slowest = max(slowest, monotonic() - begun)
        await process.kill()
    return LEASE * min(8.0, max(1.0, slowest / QUIET_START))


@pytest.mark.timeout(540)
@pytest.mark.parametrize("seed", _SEEDS)
async def test_under_random_faults_every_turn_ends_and_every_reader_is_complete(
    stage: Stage, postgres: Postgres, seed: int | None
) -> None:
    seed = random.randrange(1_000_000) if seed is None else seed
    chance = random.Random(seed)
    lease = await _lease_for_this_machine(stage)
    print(f"seed {seed}, lease {lease:.1f} s")
    replicas = [Replica(stage, lease) for _ in range(REPLICAS)]
    async with asyncio.timeout(480), asyncio.TaskGroup() as group:
        running = [group.create_task(replica.run()) for replica in replicas]
        shows = group.create_task(_run_all_turns(stage, replicas, chance))
        faults = group.create_task(_all_faults(postgres, replicas, lease, chance))
        await asyncio.wait([shows, faults])
        for each in running:
            each.cancel()
    problems = [problem for problems in shows.result() for problem in problems]
    stale = [dict(row) for row in await retry_while_unavailable(lambda: stage.database.rows(_STALE_WRITES))]
    assert not problems, "\n".join(problems)
    assert not stale


async def _all_faults(postgres: Postgres, replicas: list[Replica], lease: float, chance: random.Random) -> None:
    """Never all replicas at once, so that work goes on."""
    await chance.choice(replicas).become_stale()
    until = monotonic() + FAULTY_SECONDS
    for _ in range(FAULTS // 2):
        if monotonic() > until:
            break
        faults = [replica.inject_fault(chance) for replica in chance.sample(replicas, REPLICAS - 1)]
        if chance.random() < 0.3:
            faults.append(_inject_fault_of_postgres(postgres, lease, chance))
        await asyncio.gather(*faults)


async def _run_all_turns(stage: Stage, replicas: list[Replica], chance: random.Random) -> list[list[str]]:
    async with asyncio.TaskGroup() as group:
        shows = []
        for _ in range(TURNS):
            policy: RecoveryPolicy = chance.choice(["retry", "continue"])
            turn = await retry_while_unavailable(partial(stage.ask, policy, max_recoveries=1000))
            shows.append(group.create_task(_problems_of_turn(stage, replicas, turn, random.Random(chance.random()))))
            await asyncio.sleep(chance.uniform(0, 0.6))
    return [show.result() for show in shows]


async def _problems_of_turn(stage: Stage, replicas: list[Replica], turn: Turn, chance: random.Random) -> list[str]:
    """What is wrong with a turn once all its readers have seen its end."""
    readers = [stage.reader(turn) for _ in range(READERS_OF_A_TURN)]
    await asyncio.gather(*(_read_on_changing_replicas(reader, replicas, chance) for reader in readers))
    rows, effects = await retry_while_unavailable(partial(stage.rows, turn)), stage.effects
    return [f"turn {turn.id}: {problem}" for reader in readers for problem in problems_of(rows, reader, effects)]


async def _read_on_changing_replicas(reader: Reader, replicas: list[Replica], chance: random.Random) -> None:
    """From replica to replica, sometimes in the middle of an event. Who is frozen is left."""
    whole = False
    while not whole:
        try:
            async with asyncio.timeout(chance.uniform(0.05, 1.5)):
                whole = await reader.read(chance.choice(replicas).port)
        except TimeoutError:
            continue
        await asyncio.sleep(0.01)
