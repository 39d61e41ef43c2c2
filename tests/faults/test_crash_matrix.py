"""Kills a server at every place where a crash could matter, one place after another. The next process continues the
turn.

rows.py has the checks of each trial. The killed server and its successor are real servers at one address, on one
database. A run tries one of forty-one places, with FULL_TESTS=1 one of four, and with FULL_TESTS=all every place. On
another day it tries other places.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest

from tests.faults.processes import Process
from tests.faults.reader import Reader
from tests.faults.rows import Rows, lost, problems_of, seen_too_early
from tests.faults.stage import Stage, staged
from tests.support.effort import share
from tests.support.server_process import free_port
from turnstream.domain.asks import AskAnswer
from turnstream.domain.charges import call_of
from turnstream.domain.errors import Conflict
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.domain.rounds import billed_tokens
from turnstream.domain.turns import RecoveryPolicy, Turn
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.kit.ids import new_id
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Statement
from turnstream.storage.owners.accounts import Accounts

_TIME_LIMIT = 120  # maximum seconds for a trial, which takes less than a second unless the machine runs other tests
# A successor can take over a turn only at its start, because its checks of peers and its polls come too late.
_NEVER = 3600.0
_SETTINGS = {"JOURNAL_INTERVAL": "0.002", "LEASE": "3600", "POLL_INTERVAL": "3600"}


@pytest.fixture
async def stage(database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(database_url, tmp_path, _NEVER, PORT=str(free_port()), **_SETTINGS) as stage:
        yield stage


class TrialOfTurn:
    """A trial of one turn, with its reader and the successive servers at one address."""

    def __init__(self, stage: Stage, turn: Turn) -> None:
        self._stage = stage
        self._turn = turn
        self.reader: Reader = stage.reader(turn)

    async def server(self, **environment: str) -> Process:
        """Runs a server until it dies, or until the reader has the complete turn."""
        process = await self._stage.fork_server.server(**environment)
        dead, whole = asyncio.create_task(process.dead.wait()), asyncio.create_task(self._read(process))
        await asyncio.wait({dead, whole}, return_when=asyncio.FIRST_COMPLETED)
        if process.dead.is_set():
            await whole
        else:
            dead.cancel()
            await whole
        return process

    async def _read(self, process: Process) -> None:
        ready, dead = asyncio.create_task(process.ready.wait()), asyncio.create_task(process.dead.wait())
        await asyncio.wait({ready, dead}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        port = int(self._stage.fork_server.environment["TURNSTREAM_PORT"])
        while not await self.reader.read(port) and not process.dead.is_set():  # noqa: ASYNC110, it listens, or is dead
            await asyncio.sleep(0)
        dead.cancel()


async def points_after(stage: Stage, policy: RecoveryPolicy, *deaths: str, root: UUID | None = None) -> list[str]:
    """Returns the kill points of the process that ends a turn after these deaths."""
    seen = stage.folder / "seen"
    seen.unlink(missing_ok=True)
    turn = await stage.ask(policy, root=root)
    show = TrialOfTurn(stage, turn)
    for point in deaths:
        await show.server(FAULTS_DIE_AT=point)
    await (await show.server(FAULTS_SEEN=str(seen))).kill()
    assert not list(problems_of(await stage.rows(turn), show.reader, stage.effects))
    return [point for point in seen.read_text().splitlines() if not _is_empty_claim(point)]


def _is_empty_claim(point: str) -> bool:
    """Returns whether the point belongs to a later claim. Only the first claim finds the turn."""
    return "claim_turns" in point and not point.endswith(" 1")


async def problems_of_dying_at(
    stage: Stage, policy: RecoveryPolicy, *deaths: str, root: UUID | None = None
) -> list[str]:
    turn = await stage.ask(policy, root=root)
    show = TrialOfTurn(stage, turn)
    problems: list[str] = []
    snapshots: list[Rows] = []
    for point in deaths:
        victim = await show.server(FAULTS_DIE_AT=point)
        if not victim.dead.is_set():
            await victim.kill()
            return [f"{point} was never reached"]
        await stage.alone()
        snapshots.append(await stage.rows(turn))
        problems += seen_too_early(snapshots[-1], show.reader)
    await (await show.server()).kill()
    await stage.alone()  # a claim that was sent could still get the next turn, after the next server has checked
    after = await stage.rows(turn)
    problems += problems_of(after, show.reader, stage.effects)
    return problems + [problem for before in snapshots for problem in lost(before, after, policy)]


async def all_problems(stage: Stage, policy: RecoveryPolicy, deaths: Sequence[tuple[str, ...]]) -> list[str]:
    problems = []
    for points in deaths:
        try:
            async with asyncio.timeout(_TIME_LIMIT):
                found = await problems_of_dying_at(stage, policy, *points)
        except TimeoutError:
            found = [f"the turn has not ended after {_TIME_LIMIT} s"]
        problems += [f"killed {' and '.join(points)}: {problem}" for problem in found]
        if problems:
            problems += (stage.folder / "servers.log").read_text().splitlines()[-40:]
            break
    return problems


def _tried(points: Sequence[str]) -> Sequence[str]:
    return share(points, full=4, plain=41)


def _counted(points: Sequence[str]) -> str:
    return f"{len(points)}, of which {len(_tried(points))} were tried"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("policy", "late"),
    [("retry", False), ("continue", False), pytest.param("continue", True, marks=pytest.mark.full)],
    ids=["retry", "continue", "late"],
)
async def test_after_a_kill_at_any_point_the_successor_ends_the_turn_and_keeps_stored_blocks(
    stage: Stage, policy: RecoveryPolicy, late: bool, record_property: Callable[[str, object], None]
) -> None:
    """With `late`, the round writer has no tick before the kills, so the rounds are written with their first blocks."""
    if late:
        stage.fork_server.environment["FAULTS_ROUNDS_LATE"] = "1"
    points = await points_after(stage, policy)
    assert len(points) > 120
    problems = await all_problems(stage, policy, [(point,) for point in _tried(points)])
    record_property(f"kill points, policy {policy}{', rounds late' if late else ''}", _counted(points))
    assert not problems, "\n".join(problems)


_OF_JOBS = re.compile(
    r"(before|after) (start_jobs|settle_jobs?|checkpoint_job|detach_job|detach_to_ask|ask_for_job|wait)|"
    r"(start|end|poll|answer) of (note|book)"
)


# The required kill points, by the kind of the calls.
_NEEDED = {
    "attached": ["before settle_job", "after settle_job"],
    "detached": ["before detach_job", "after detach_job", "poll of note"],
    "asks": ["before detach_to_ask", "after detach_to_ask", "poll of note"],
    "asks while it runs": ["before ask_for_job", "after ask_for_job", "answer of note"],
}
_OPEN_QUESTIONS = Statement(
    """
    SELECT turn_id, chat_id, tool_use_id FROM asks JOIN turns ON turns.id = turn_id
    WHERE answer IS NULL AND question IS NOT NULL AND status IN ('running', 'queued', 'waiting')
    """
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("detached", "continue"),
        *(
            pytest.param(kind, policy, marks=pytest.mark.full)
            for kind, policy in product(_NEEDED, get_args(RecoveryPolicy))
            if (kind, policy) != ("detached", "continue")
        ),
    ],
)
async def test_after_a_kill_at_any_point_of_a_job_nothing_is_run_twice_and_the_turn_ends(
    stage: Stage, kind: str, policy: RecoveryPolicy, record_property: Callable[[str, object], None]
) -> None:
    stage.fork_server.environment["FAULTS_BACKGROUND"] = kind
    async with asyncio.TaskGroup() as group:
        person = group.create_task(answer_all(stage))
        points = [point for point in await points_after(stage, policy) if _OF_JOBS.match(point)]
        needed = {f"{point} 1" for point in _NEEDED[kind]}
        tried = [point for point in points if point in needed.union(share(points, full=3, plain=8))]
        missed = await missed_points(stage, policy, tried)
        person.cancel()
    reached = f"{len(points)}, of which {len(tried)} were tried and {len(tried) - len(missed)} were reached"
    record_property(f"kill points of jobs, {kind}, policy {policy}", reached)
    assert needed <= {*tried} - {*missed}
    assert not [point for point in missed if re.match(r"\w+ (start_jobs|settle_jobs?|checkpoint_job|of) 1", point)]
    assert len(missed) < len(tried) / 2


async def missed_points(stage: Stage, policy: RecoveryPolicy, points: Sequence[str]) -> list[str]:
    """Kills a server at each point. Returns the points that were not reached. Fails if a kill at any other point causes
    a problem.
    """
    missed: list[str] = []
    for point in points:
        # It is random whether the turn waits before a job has ended, and which of two jobs ends first.
        problems = await all_problems(stage, policy, [(point,)])
        if problems and problems[0].endswith("was never reached"):
            missed.append(point)
        else:
            assert not problems, "\n".join(problems)
    return missed


async def answer_all(stage: Stage) -> None:
    """Answers each question of a job at once, like a person, until the task is cancelled."""
    actions, answer = Actions(stage.database), AskAnswer("result", '{"action":"accept","content":{"name":"Ada"}}')
    while True:
        for row in await stage.database.rows(_OPEN_QUESTIONS):
            decision = Decision(row["tool_use_id"], None, answer, "actions.0", elicited=True)
            with suppress(Conflict):  # the run that asked has ended
                await actions.answer(LOCAL_OWNER, row["chat_id"], row["turn_id"], [decision], None)
        await asyncio.sleep(0.005)  # rows have no event


_OF_BUDGETS = re.compile(r"(before|after) (take_of_family|seal|void|take_over|end)|end of events")
_GET_CHARGES = Statement(
    "SELECT call, input_tokens + cache_read_tokens + cache_write_tokens + output_tokens AS tokens, root_turn"
    " FROM charges WHERE turn_id = :turn"
)
_AGE = Statement("UPDATE reservations SET reserved_at = reserved_at - interval '3 minutes'")


async def problems_of_family(stage: Stage, root: UUID) -> AsyncIterator[str]:
    """Yields the problems of the charges of the only turn that shares the budget of `root`, after its end."""
    (row,) = await stage.database.rows(
        Statement("SELECT id, chat_id FROM turns WHERE request->>'root_turn' = :root"), root=str(root)
    )
    turn = await Turns(stage.database).get(LOCAL_OWNER, row["chat_id"], row["id"])
    accounts = Accounts(stage.database)
    before = await accounts.family_use(LOCAL_OWNER, root)
    await stage.database.rows(_AGE)
    async for _ in accounts.sweep():
        pass
    used = await accounts.family_use(LOCAL_OWNER, root)
    if used != before:
        yield f"it had used {before}, and {used} once what dead servers had reserved was charged"
    charges = {row["call"]: row for row in await stage.database.rows(_GET_CHARGES, turn=turn.id)}
    if {row["root_turn"] for row in charges.values()} != {root}:
        yield f"its charges have the roots {[row['root_turn'] for row in charges.values()]}"
    if used.tokens != sum(row["tokens"] for row in charges.values()):
        yield f"the family has used {used}, its charges are {charges}"
    for round in turn.rounds:
        if (tokens := billed_tokens(round.spent).total) > (
            charged := charges.get(call_of(round), {"tokens": 0})["tokens"]
        ):
            yield f"{round} has used {tokens}, {charged} are charged"


@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.parametrize("policy", ["retry", "continue"])
async def test_after_a_kill_around_a_model_call_a_budget_of_the_family_counts_its_use_once(
    stage: Stage, policy: RecoveryPolicy, record_property: Callable[[str, object], None]
) -> None:
    points = [point for point in await points_after(stage, policy, root=new_id()) if _OF_BUDGETS.match(point)]
    assert {f"{when} take_of_family {number}" for when in ("before", "after") for number in (1, 2, 3)} <= {*points}
    for point in points:
        root = new_id()
        async with asyncio.timeout(_TIME_LIMIT):
            problems = await problems_of_dying_at(stage, policy, point, root=root)
        problems += [problem async for problem in problems_of_family(stage, root)]
        assert not problems, f"killed {point}: {problems}"
    record_property(f"kill points of budgets, policy {policy}", len(points))


_OF_REPORTS = re.compile(
    r"(before|after) (start_reports|settle_job|deliver_report|apply_steers)|report |(start|end) of (note|book)"
)


@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.parametrize("policy", ["retry", "continue"])
async def test_after_a_kill_at_any_point_of_a_report_it_is_delivered_once(
    stage: Stage, policy: RecoveryPolicy, record_property: Callable[[str, object], None]
) -> None:
    stage.fork_server.environment["FAULTS_BACKGROUND"] = "reports"
    stage.fork_server.environment["FAULTS_PACE"] = "0.01"  # otherwise the model waits for readers, and there are none
    stage.fork_server.environment["TURNSTREAM_POLL_INTERVAL"] = "1"  # the poll replaces lost notifications
    seen = stage.folder / "seen"
    turn = await stage.ask(policy)
    await until_reported(stage, turn, FAULTS_SEEN=str(seen))
    points = [point for point in seen.read_text().splitlines() if _OF_REPORTS.match(point)]
    assert not [problem async for problem in problems_of_reports(stage, turn)]
    missed = []
    for point in points:
        turn = await stage.ask(policy)
        async with asyncio.timeout(_TIME_LIMIT):
            # It is random which report comes first, and whether its turn still runs.
            if not await until_reported(stage, turn, FAULTS_DIE_AT=point):
                missed.append(point)
            else:
                await until_reported(stage, turn)
        problems = [f"killed {point}: {problem}" async for problem in problems_of_reports(stage, turn)]
        assert not problems, "\n".join(problems)
    record_property(
        f"kill points of reports, policy {policy}", f"{len(points)}, of which {len(points) - len(missed)} were reached"
    )
    first = [point for point in points if point.endswith(" 1")]
    names = {point.rpartition(" ")[0] for point in first}
    assert names >= {"after start_reports", "after settle_job", "before deliver_report", "report delivered"}
    assert names >= {"after deliver_report", "before apply_steers", "after apply_steers", "report applied"}
    assert not {*first} & {*missed}


async def until_reported(stage: Stage, turn: Turn, **environment: str) -> bool:
    """Runs a server until it dies, or until all turns of the chat have ended and all reports are applied. Returns
    whether it died.
    """
    server, stopped = await stage.fork_server.server(**environment), asyncio.Event()

    async def watch() -> None:
        while not await stage.connection.fetchval(_ALL_REPORTED, turn.chat_id):  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        stopped.set()

    watching, dying = asyncio.create_task(watch()), asyncio.create_task(server.dead.wait())
    await asyncio.wait({watching, dying}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watching, dying):
        task.cancel()
    await asyncio.gather(watching, dying, return_exceptions=True)
    died = server.dead.is_set() and not stopped.is_set()
    await server.kill()
    await stage.alone()
    return died


_ALL_REPORTED = """
    SELECT NOT EXISTS (SELECT FROM turns WHERE chat_id = $1 AND status IN ('queued', 'running', 'waiting'))
        AND (SELECT count(*) >= 3 AND bool_and(delivered_round IS NOT NULL) FROM jobs JOIN turns ON turns.id = turn_id
            WHERE chat_id = $1 AND reports)
"""


async def problems_of_reports(stage: Stage, turn: Turn) -> AsyncIterator[str]:
    rows = await stage.connection.fetch(
        "SELECT jobs.*, turns.status, (SELECT count(*) FROM blocks JOIN turns AS each ON each.id = blocks.turn_id"
        "   WHERE chat_id = $1 AND type = 'report' AND data->>'job' = jobs.id::text) AS reported,"
        " (SELECT count(*) FROM blocks WHERE turn_id = delivered_to AND round = delivered_round"
        "   AND type = 'report' AND data->>'job' = jobs.id::text) AS in_place"
        " FROM jobs JOIN turns ON turns.id = jobs.turn_id WHERE chat_id = $1",
        turn.chat_id,
    )
    effects = stage.effects
    for row in rows:
        happened = effects[f"{row['turn_id']}:{row['round']}:{row['tool_use_id']}"]
        if (row["reported"], row["in_place"], row["status"]) != (1, 1, "complete"):
            yield f"{row['name']} was reported {row['reported']} times, {row['in_place']} where its row says"
        if happened > 1 and row["name"] == "note":
            yield f"note took effect {happened} times"
        if happened == 0 and OUTCOME_UNKNOWN not in row["outcome"]:
            yield f"{row['name']} took no effect: {row['outcome']}"
    unended = "SELECT id, status FROM turns WHERE chat_id = $1 AND status <> 'complete'"
    for row in await stage.connection.fetch(unended, turn.chat_id):
        yield f"turn {row['id']} is {row['status']}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", ["after append_tick 6", "end of note 1"])
@pytest.mark.parametrize("policy", [pytest.param("retry", marks=pytest.mark.full), "continue"])
async def test_a_successor_that_dies_while_it_takes_over_has_a_successor_too(
    stage: Stage, policy: RecoveryPolicy, first: str, record_property: Callable[[str, object], None]
) -> None:
    """Runs until the next model call, because the rest is the same for every server. The journal may or may not have a
    tick before that.
    """
    points = await points_after(stage, policy, first)
    early = points[: points.index("event 3")]
    points = [point for point in early if "append_tick" not in point and "checkpoint" not in point]
    problems = await all_problems(stage, policy, [(first, point) for point in _tried(points)])
    record_property(f"kill points after a death {first}, policy {policy}", _counted(points))
    assert not problems, "\n".join(problems)
