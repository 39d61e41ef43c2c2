"""Every statement that writes the status of a turn runs from every status, and is compared with the table of
transitions.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_args
from uuid import UUID

import asyncpg
import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.jobs import JOB_TRANSITIONS, JobState
from turnstream.domain.turns import TRANSITIONS, Status, TurnRequest
from turnstream.extensions.admin.statement_list import statements as every_statement
from turnstream.kit.ids import new_id
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.database import Statement, connect
from turnstream.storage.owners.charges import columns_of_charges
from turnstream.storage.rows import columns_of, columns_of_rounds, to_json

Values = Mapping[str, Any]
STATUSES: tuple[Status, ...] = get_args(Status)
EDGES = {(now, then) for now, ways_out in TRANSITIONS.items() for then in ways_out}

REPLICA, JOB = new_id(), new_id()
ANSWER = to_json({"kind": "expired"})
ERROR = to_json({"type": "overloaded", "message": "The provider is overloaded."})
LATE = datetime(2026, 1, 1, tzinfo=UTC)
OF_A_ROUND = {
    **columns_of([]),
    **columns_of_rounds([], []),
    **columns_of_charges([]),
}


@dataclass(frozen=True)
class Write:
    """The transitions of a statement, with the `values` for each transition. The values of the row are separate."""

    edges: set[tuple[Status, Status]]
    values: Sequence[Values] = ({},)


NOTHING_HELD = {"held_blocks": 0, "held_rounds": 0, "held_sealed": 0, "held_asks": 0}
ENDS: Sequence[Values] = [
    {
        "arrivals": known,
        "status": status,
        "turn_stop_reason": "end_turn",
        "error": ERROR if status == "error" else None,
        "turn_usage": "{}",
        "recoveries": 0,
    }
    for known, status in product((0, 1), STATUSES)
]
STOPPED = {"owner": "ada", "tool_use_id": "b", "unrun": "{}", "stopped": "{}"}
WRITES: Mapping[str, Write] = {
    "CLAIM_TURNS": Write({("queued", "running")}, [{"replica": REPLICA, "step": 1, "limit": 10, "suspects": 1}]),
    "CLAIM_TURNS_FAIRLY": Write(
        {("queued", "running")}, [{"replica": REPLICA, "step": 1, "limit": 10, "most": 5, "suspects": 1}]
    ),
    "TAKE_OVER": Write({("running", "queued")}, [{"gone": [REPLICA]}]),
    "RELEASE_TURN": Write({("running", "queued")}, [columns_of_rounds([], [])]),
    "GIVE_BACK": Write({("running", "queued")}, [{"replica": REPLICA, "every": True}]),
    "DECLINE": Write({("running", "queued")}, [{"replica": REPLICA, "pause": timedelta(seconds=1), "looks": 4}]),
    "REQUEUE_TURN": Write({("running", "queued")}),
    "CANCEL_TURN": Write(
        {("queued", "cancelled"), ("waiting", "queued")}, [{"withdraws": each} for each in (False, True)]
    ),
    "ARRIVE": Write({("waiting", "queued")}),
    "SETTLE_JOB": Write({("waiting", "queued")}, [{"job": JOB, "job_attempt": 1, "outcome": "{}"}]),
    "STOP_JOB": Write({("waiting", "queued")}, [STOPPED]),
    "PUT_RESULT": Write({("waiting", "queued")}, [{"job": JOB, "digest": b"digest", "outcome": "{}"}]),
    "EXPIRE_ASKS": Write({("waiting", "queued")}, [{"answer": ANSWER}]),
    "ANSWER_SIGN_INS": Write(
        {("waiting", "queued")}, [{"owner": "ada", "server": "calendar", "answer": ANSWER, "principals": "[]"}]
    ),
    "WAIT": Write(
        {("running", "waiting"), ("running", "queued"), ("waiting", "queued")},
        [{"arrivals": known, "superseded": ANSWER} for known in (0, 1)],
    ),
    "END_TURN": Write({("running", then) for then in ("queued", "complete", "cancelled", "error")}, ENDS),
    "SEAL_AND_END": Write(
        {("running", then) for then in ("queued", "complete", "cancelled", "error")},
        [{**OF_A_ROUND, **end} for end in ENDS],
    ),
}
WRITES_STATUS = re.compile(r"UPDATE turns\s+SET\s(?:(?!\bFROM fenced\b|\bWHERE\b).)*?\bstatus = ", re.DOTALL)
PUT_INTO = """
    UPDATE turns
    SET status = $2, attempt = $3, arrivals = $4, cancel_requested = $5, stop_reason = 'end_turn',
        replica = CASE WHEN $2 = 'running' THEN $6::uuid END,
        ended_at = CASE WHEN $2 IN ('complete', 'cancelled', 'error') THEN now() END,
        error = CASE WHEN $2 = 'error' THEN '{}'::json END
    WHERE id = $1
"""


# The statements that write the state of a job, and the transitions of each.
WRITES_OF_JOBS: Mapping[str, set[tuple[JobState, JobState]]] = {
    "CLAIM_JOBS": {("due", "running"), ("detached", "running")},
    "RELEASE_JOBS": {("running", "due")},
    "DETACH_JOB": {("running", "detached")},
    "DETACH_TO_ASK": {("running", "detached")},
    # A run that was returned may end before the next run begins.
    "SETTLE_JOB": {(state, "settled") for state in ("due", "running", "detached")},
    "STOP_JOB": {(state, "settled") for state in ("due", "running", "detached")},
    "PUT_RESULT": {(state, "settled") for state in ("due", "running", "detached")},
    "SETTLE_JOBS": {(state, "stopped") for state in ("due", "running", "detached")},
    "DISCARD_REPORTS": {(state, "stopped") for state in ("due", "running", "detached")},
}
WRITES_STATE_OF_JOB = re.compile(r"UPDATE jobs\s+SET\s[^;]*?\b(replica|settled_at) = ")
PUT_JOB_INTO = """
    UPDATE jobs SET replica = CASE $2 WHEN 'running' THEN $3::uuid END,
        settled_at = CASE WHEN $2 IN ('settled', 'stopped') THEN now() END,
        handle = CASE $2 WHEN 'detached' THEN '1'::json END,
        outcome = CASE $2 WHEN 'settled' THEN '{}'::json END
    WHERE id = $1
"""
STATE_OF_JOB = """
    SELECT CASE WHEN settled_at IS NULL THEN CASE WHEN replica IS NOT NULL THEN 'running'
        WHEN handle IS NULL THEN 'due' ELSE 'detached' END
        WHEN outcome IS NULL THEN 'stopped' ELSE 'settled' END FROM jobs
"""


def statements() -> dict[str, Statement]:
    """Returns every statement by the name under which it is declared."""
    return {name.rpartition(".")[2]: statement for name, statement in every_statement().items()}


def test_every_statement_that_writes_a_status_is_tried() -> None:
    assert {name for name, statement in statements().items() if WRITES_STATUS.search(statement.sql)} == WRITES.keys()


def test_a_new_assistant_turn_is_queued_or_claimed_and_a_user_turn_is_complete() -> None:
    inserted = [
        set(re.findall(r"'assistant', '\w+'|'user', '\w+'|updated_at, (?:NULL, )?'\w+', \d, [$\w]+", statement.sql))
        for statement in statements().values()
        if re.search(r"INSERT INTO turns \([^)]*\brole\b", statement.sql) and "::turns" not in statement.sql
    ]
    assert {re.sub(r"\$\d+", ":replica", found) for found in set().union(*inserted)} == {
        "'user', 'complete'",
        "'assistant', 'queued'",
        "updated_at, 'complete', 0, CAST",  # one statement inserts both turns: `ended_at`, then `status`
        "updated_at, NULL, 'queued', 0, NULL",
        "updated_at, NULL, 'running', 1, :replica",
    }


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def turn(database_url: str, connection: "asyncpg.Connection[Any]") -> UUID:
    """Inserts an assistant turn with an expired ask, an ask for a sign-in, and a running job."""
    async with connect(database_url, size=1) as database:
        chat = await Chats(database).create("ada", None, None, {})
        async with Exchanges(database).after(Target("ada", chat.id), None) as draft:
            exchange = await draft.create([Block(0, 0, 0, "text", "Ahoy")], TurnRequest("model"), None)
    turn = exchange.assistant_turn.id
    await connection.execute(
        "INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt, expires_at)"
        " VALUES ($1, 1, 'a', 'look', 'approval', '', 1, $2)",
        turn,
        LATE,
    )
    await connection.execute(
        "INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt, question)"
        """ VALUES ($1, 1, 'c#1.1', 'events', 'sign_in', '', 1, '{"server": "calendar"}')""",
        turn,
    )
    await connection.execute(
        "INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline, attempt, token_digest)"
        " VALUES ($1, $2, 1, 'b', 'dig', 'tool', '{}', now(), 1, 'digest')",
        JOB,
        turn,
    )
    return turn


@pytest.mark.parametrize("name", WRITES)
async def test_a_statement_performs_its_edges_and_no_other(
    connection: "asyncpg.Connection[Any]", turn: UUID, name: str
) -> None:
    statement, edges = statements()[name], set()
    rows = [row for row in product(STATUSES, (0, 1), (0, 1), (False, True)) if row[:2] != ("running", 0)]
    for (now, attempt, arrivals, cancelled), values in product(rows, WRITES[name].values):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(PUT_INTO, turn, now, attempt, arrivals, cancelled, REPLICA)
        try:
            await connection.fetch(
                statement.sql,
                *statement.arguments({**NOTHING_HELD, **values, "turn": turn, "turns": [turn], "attempt": attempt}),
            )
            edges.add((now, await connection.fetchval("SELECT status FROM turns WHERE id = $1", turn)))
        except asyncpg.CheckViolationError:
            pass  # a constraint refuses the row, and nothing is written
        await transaction.rollback()
    assert {(now, then) for now, then in edges if now != then} == WRITES[name].edges


def test_every_statement_that_writes_the_state_of_a_job_is_tried() -> None:
    written = {name for name, each in statements().items() if WRITES_STATE_OF_JOB.search(each.sql)}
    assert written == WRITES_OF_JOBS.keys()
    edges = {(now, then) for now, ways_out in JOB_TRANSITIONS.items() for then in ways_out}
    assert set().union(*WRITES_OF_JOBS.values()) == edges


@pytest.mark.parametrize("name", WRITES_OF_JOBS)
async def test_a_statement_moves_a_job_by_its_edges_and_no_other(
    connection: "asyncpg.Connection[Any]", turn: UUID, name: str
) -> None:
    statement, edges = statements()[name], set()
    await connection.execute(
        "INSERT INTO replicas (id, address, session, lease_until) VALUES ($1, 'here', 1, now())", REPLICA
    )
    if name == "DISCARD_REPORTS":
        await connection.execute("UPDATE jobs SET reports = true")
        await connection.execute(PUT_INTO, turn, "cancelled", 1, 0, True, REPLICA)
    else:
        await connection.execute(PUT_INTO, turn, "running", 1, 0, False, REPLICA)
    result = Block(0, 1, 1, "tool_result", "a hole", tool_use_id="b", name="dig")
    values = {
        **NOTHING_HELD,
        **columns_of([result]),
        "states": ["settled"],
        "turn": turn,
        "attempt": 1,
        "job": JOB,
        "jobs": [JOB],
        "job_attempt": 1,
        "replica": REPLICA,
        "outcome": "{}",
        "free": 9,
        "names": ["dig"],
        "handle": "1",
        "after": None,
        "message": None,
        "digest": "0" if name == "DETACH_TO_ASK" else b"digest",
        "question_id": "b#j1.0",
        "question": "{}",
        "seconds": 1.0,
        "pause": 1.0,
        "approvers": None,
        **STOPPED,
    }
    for now in get_args(JobState):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(PUT_JOB_INTO, JOB, now, REPLICA)
        await connection.fetch(statement.sql, *statement.arguments(values))
        edges.add((now, await connection.fetchval(STATE_OF_JOB)))
        await transaction.rollback()
    assert {(now, then) for now, then in edges if now != then} == WRITES_OF_JOBS[name]


def test_the_statements_perform_the_edges_of_the_table() -> None:
    assert set().union(*(write.edges for write in WRITES.values())) == EDGES
