"""Reports: outcomes of jobs for which their turn did not wait, and which are delivered to the branch of that turn.

A report is delivered like a message of the user: the report steers the running turn, or starts a new turn. The steer
has the id of the job. The row of the job changes in the same transaction, so a report is delivered exactly once, even
if a process dies.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from turnstream.domain.blocks import Block, CallKey
from turnstream.domain.errors import NotFound
from turnstream.domain.jobs import Delivery
from turnstream.domain.turns import TurnRequest
from turnstream.storage import contents
from turnstream.storage.chats.exchanges import MARK_FOLLOWED, Draft, Exchanges, Target, lock_first_open, placement
from turnstream.storage.contents import REQUESTS, STEERS
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import TOOLS, requests_from, to_json
from turnstream.storage.runs.queue import QUEUED, UPDATED
from turnstream.storage.runs.session import CHANNEL

# Ends the jobs of cancelled turns. Each runner may do this at any poll; two runners do not wait for each other.
DISCARD_REPORTS = Statement(
    """
    WITH over AS (
        SELECT jobs.id FROM jobs JOIN turns ON turns.id = turn_id
        WHERE turns.status = 'cancelled' AND jobs.id IN (
            SELECT id FROM jobs WHERE reports AND settled_at IS NULL
            UNION ALL SELECT id FROM jobs WHERE reports AND settled_at IS NOT NULL AND delivery IS NULL
        )
        FOR UPDATE OF jobs SKIP LOCKED
    )
    UPDATE jobs SET settled_at = coalesce(settled_at, now()), replica = NULL, delivery = 'discarded'
    FROM over WHERE jobs.id = over.id AND delivery IS NULL
    RETURNING jobs.id
    """
)
GET_REPORTS = Statement(
    f"""
    SELECT jobs.id, turn_id, round, tool_use_id, name, outcome::text AS outcome, chat_id, chats.owner,
        request, {TOOLS} AS tools
    FROM jobs JOIN turns ON turns.id = turn_id JOIN chats ON chats.id = chat_id
    WHERE reports AND jobs.settled_at IS NOT NULL AND delivery IS NULL AND turns.status <> 'cancelled'
      AND jobs.id <> ALL(CAST(:but AS uuid[]))
      AND NOT EXISTS (SELECT FROM moves WHERE moves.owner = chats.owner AND held_until > now())
    ORDER BY jobs.settled_at LIMIT CAST(:most AS int)
    """,
    opens=[REQUESTS.named(id="turn_id"), contents.JOBS],
)
GET_DELETED = Statement(
    """
    SELECT id FROM unnest(CAST(:jobs AS uuid[])) AS known (id)
    WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.id = known.id)
    """
)
# The chat is locked already, so the second of two replicas finds that the report has been delivered.
LOCK_REPORT = Statement("SELECT id FROM jobs WHERE id = :job AND delivery IS NULL FOR NO KEY UPDATE")
# The end of the branch of a turn: the newest answer among the turn and all turns below it.
GET_LEAF = Statement(
    """
    WITH RECURSIVE below AS (
        SELECT id, role, created_at FROM turns WHERE id = :turn
        UNION ALL
        SELECT turns.id, turns.role, turns.created_at FROM below
        JOIN turns ON turns.chat_id = :chat AND turns.parent_id = below.id
    )
    SELECT id FROM below WHERE role = 'assistant' ORDER BY created_at DESC, id DESC LIMIT 1
    """
)
# Open asks stay open: a report answers none of them. A waiting turn applies the report when it continues.
DELIVER_REPORT = Statement(
    f"""
    WITH steered AS (
        INSERT INTO steers (id, turn_id, blocks, is_report) VALUES (:job, :turn, CAST(:blocks AS json), true)
    ), arrived AS (
        UPDATE turns SET arrivals = arrivals + 1 WHERE id = :turn RETURNING id, status
    ), delivered AS (
        UPDATE jobs SET delivery = :delivery, delivered_to = :turn,
            outcome = coalesce(CAST(:outcome AS json), outcome)
        WHERE id = :job
    )
    SELECT pg_notify({CHANNEL}, CASE status WHEN 'queued' THEN '{QUEUED}' ELSE '{UPDATED} ' || id END) FROM arrived
    """,
    seals=[STEERS.named(turn_id="turn", id="job"), contents.JOBS.named(turn_id="of_turn")],
)


@dataclass(frozen=True, slots=True)
class JobReport:
    """A report that waits for delivery. The job `id` has the `outcome`, as the JSON text of its row; None if the
    database has lost commits. The call of the job was made by `turn`, which has the `request`.
    """

    id: UUID
    owner: str
    chat: UUID
    turn: UUID
    call: CallKey
    name: str
    outcome: str | None
    request: TurnRequest


@dataclass(frozen=True, slots=True)
class DeliveredReport:
    """How a report was delivered, and to which turn. `turn` is None if the turn of the call has been deleted."""

    delivery: Delivery
    turn: UUID | None


_OF_DELETED_TURN = DeliveredReport("discarded", None)


class JobReports:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchanges = Exchanges(database)

    async def discard(self) -> Sequence[UUID]:
        """Ends the jobs of cancelled turns. Returns the ids of these jobs."""
        return [row["id"] for row in await self._database.rows(DISCARD_REPORTS)]

    async def deleted(self, jobs: Collection[UUID]) -> Sequence[UUID]:
        """Returns those of `jobs` that have no row any more."""
        return [row["id"] for row in await self._database.rows(GET_DELETED, jobs=list(jobs))]

    async def undelivered(self, most: int, but: Collection[UUID]) -> Sequence[JobReport]:
        """Returns up to `most` reports that wait for delivery, the oldest first, except the reports of the jobs in
        `but`.
        """
        rows = await self._database.rows(GET_REPORTS, most=most, but=list(but))
        requests = requests_from(rows)
        return [
            JobReport(
                row["id"],
                row["owner"],
                row["chat_id"],
                row["turn_id"],
                (row["round"], row["tool_use_id"]),
                row["name"],
                row["outcome"],
                requests[row["request"], row["tools"]],
            )
            for row in rows
        ]

    async def deliver(self, report: JobReport, block: Block, outcome: str | None = None) -> DeliveredReport | None:
        """Adds the report to the branch of its turn, as `block`. If there is an `outcome`, it replaces the outcome in
        the row of the job. Returns None if another replica has delivered the report.

        A turn that has never run gets no report: its message could still be withdrawn, and the report with it.
        """
        try:
            async with self._exchanges.locked(report.owner, report.chat) as (connection, chat):
                leaf = await connection.row(GET_LEAF, chat=chat.id, turn=report.turn)
                if leaf is None:
                    return _OF_DELETED_TURN
                if await connection.row(LOCK_REPORT, job=report.id) is None:
                    return None
                place = await placement(connection, Target(report.owner, chat.id, leaf["id"], "steer"))
                steerable = [turn for turn in place.steerable if turn.attempt > 0]
                steered = await lock_first_open(connection, steerable)
                if steered is None:
                    if place.before is not None and not place.before.ended:
                        await connection.row(MARK_FOLLOWED, turn=place.before.id)
                    started = await Draft(chat, place.before, connection, None).create([], report.request, None)
                    delivered = DeliveredReport("started", started.assistant_turn.id)
                else:
                    delivered = DeliveredReport("steered", steered.id)
                await connection.rows(
                    DELIVER_REPORT,
                    owner=report.owner,
                    of_turn=report.turn,
                    job=report.id,
                    turn=delivered.turn,
                    blocks=to_json([block]),
                    delivery=delivered.delivery,
                    outcome=outcome,
                )
                return delivered
        except NotFound:
            return _OF_DELETED_TURN
