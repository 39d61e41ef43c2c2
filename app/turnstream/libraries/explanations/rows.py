"""Reads the state of turns from their rows and from the reports of their replicas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from turnstream.domain.activity import Activity, RunningCall
from turnstream.domain.errors import NotFound
from turnstream.domain.turns import Status
from turnstream.libraries.explanations.reasons import LifeEvent, OpenAsk, OpenJob, TurnState
from turnstream.libraries.turn_counts import QUEUED_SINCE
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.retention import NO_ID
from turnstream.storage.rows import ID_FORM, OPEN_STATUSES, OWNER_RUNNING_TURNS, REPLICA_TURNS, WAITS
from turnstream.tracing import trace_id

GET_REPORTS = Statement(
    """
    SELECT replica, extract(epoch FROM now() - reported_at)::float AS reported, turns
    FROM activity JOIN replicas ON replicas.id = replica WHERE lease_until > now()
    """
)
_STATE = f"""
    SELECT turns.id, turns.chat_id, owner, turns.status, turns.attempt, turns.recoveries, turns.cancel_requested,
        turns.stop_reason, turns.error->>'message' AS error, turns.request->>'model' AS model,
        turns.request->>'trace' AS trace, turns.replica,
        extract(epoch FROM coalesce(turns.ended_at, now()) - turns.created_at)::float AS seconds,
        extract(epoch FROM now() - {QUEUED_SINCE.format(turn="turns")})::float AS queued,
        address, extract(epoch FROM lease_until - now())::float AS lease_left, before.id AS behind,
        CASE turns.status WHEN 'queued' THEN (
            SELECT count(*) FROM turns AS other
            WHERE other.status = 'queued' AND (other.created_at, other.id) < (turns.created_at, turns.id)
        ) ELSE 0 END AS ahead,
        CASE turns.status WHEN 'queued' THEN (
            SELECT count(*) FROM turns AS other JOIN chats AS theirs ON theirs.id = other.chat_id
            WHERE other.status = 'running' AND theirs.owner = chats.owner
        ) ELSE 0 END AS owner_running,
        coalesce(running_turns, CASE
            WHEN living.any_number THEN NULL WHEN living.most IS NULL THEN CAST(:most AS int) ELSE living.most
        END) AS owner_limit,
        living.claiming, living.room, CASE turns.status WHEN 'queued' THEN (
            SELECT json_agg(other.address ORDER BY other.address) FROM replicas AS other
            WHERE other.id = ANY(turns.declined) AND other.lease_until > now()
        ) END AS declined,
        (
            SELECT json_agg(json_build_object(
                'name', name, 'kind', kind, 'seconds', extract(epoch FROM now() - asked_at)
            ) ORDER BY asked_at) FROM asks WHERE asks.turn_id = turns.id AND {WAITS}
        ) AS asks,
        (
            SELECT json_agg(json_build_object(
                'id', jobs.id, 'name', name, 'replica', holder.address, 'seconds', extract(epoch FROM now()
                    - CASE WHEN holder.id IS NULL AND handle IS NULL THEN due_at ELSE jobs.started_at END),
                'detached', holder.id IS NULL AND handle IS NOT NULL, 'reports', reports,
                'due', CASE WHEN isfinite(due_at) THEN extract(epoch FROM due_at - now()) END,
                'deadline', CASE WHEN isfinite(deadline) THEN extract(epoch FROM deadline - now()) END,
                'child', CASE WHEN kind = 'child' AND handle->>'turn' ~ '{ID_FORM}' THEN handle->>'turn' END
            ) ORDER BY jobs.created_at) FROM jobs LEFT JOIN replicas AS holder ON holder.id = jobs.replica
            WHERE turn_id = turns.id AND jobs.settled_at IS NULL
        ) AS jobs,
        (
            SELECT json_agg(json_build_object(
                'name', name, 'seconds', extract(epoch FROM now() - tool_calls.started_at)
            ) ORDER BY tool_calls.started_at) FROM tool_calls WHERE turn_id = turns.id AND state = 'started'
        ) AS calls
    FROM turns JOIN chats ON chats.id = turns.chat_id LEFT JOIN replicas ON replicas.id = turns.replica
        CROSS JOIN (
            SELECT count(*) FILTER (WHERE draining_since IS NULL) AS claiming, max(nullif(most, '')::int) AS most,
                bool_or(most = '') AS any_number, CASE WHEN bool_and(room IS NOT NULL) THEN
                    (sum(greatest(room, 0)) FILTER (WHERE draining_since IS NULL))::int
                END AS room
            FROM (
                SELECT draining_since, configuration->>'{OWNER_RUNNING_TURNS}' AS most,
                    (configuration->>'{REPLICA_TURNS}')::int - (
                        SELECT count(*) FROM turns AS other
                        WHERE other.status = 'running' AND other.replica = replicas.id
                    ) AS room
                FROM replicas WHERE lease_until > now()
            ) AS replica
        ) AS living
        LEFT JOIN accounts USING (owner)
        LEFT JOIN turns AS question ON question.id = turns.parent_id AND turns.status = 'queued'
        LEFT JOIN turns AS before ON before.id = question.parent_id AND before.status IN {OPEN_STATUSES}
"""
OPEN_TURNS = Statement(
    f"""
    {_STATE}
    WHERE turns.status IN {OPEN_STATUSES} AND (CAST(:status AS text) IS NULL OR turns.status = :status)
    ORDER BY turns.created_at, turns.id LIMIT :limit
    """
)
TURN_STATES = Statement(f"{_STATE} WHERE turns.id = ANY(CAST(:turns AS uuid[])) AND turns.role = 'assistant'")
# Reads only rows, so the statement also works for old turns, and on every replica.
LIFE = Statement(
    """
    SELECT at, what FROM (
        SELECT created_at AS at, 'created' AS what, 0 AS place FROM turns WHERE id = :turn
        UNION ALL SELECT started_at, 'claimed for the first time', 1 FROM turns WHERE id = :turn
        UNION ALL SELECT started_at, format('round %s of attempt %s: %s begins to answer', number, attempt, model), 2
            FROM rounds WHERE turn_id = :turn
        UNION ALL SELECT first_delta_at, format('round %s: first text', number), 3 FROM rounds WHERE turn_id = :turn
        UNION ALL SELECT sealed_at, format('round %s sealed by attempt %s: %s', number, sealed_by, stop_reason), 4
            FROM rounds WHERE turn_id = :turn
        UNION ALL SELECT started_at, format('tool %s started', name), 5 FROM tool_calls WHERE turn_id = :turn
        UNION ALL SELECT settled_at, format('tool %s %s', name, CASE state
                WHEN 'unknown' THEN 'has an unknown outcome' ELSE 'settled' END), 6
            FROM tool_calls WHERE turn_id = :turn
        UNION ALL SELECT created_at, format('tool %s runs as the job %s', name, id), 5 FROM jobs WHERE turn_id = :turn
        UNION ALL SELECT started_at, format('job of %s claimed, run %s', name, attempt), 5 FROM jobs
            WHERE turn_id = :turn
        UNION ALL SELECT settled_at, format('job of %s %s', name, CASE WHEN outcome IS NULL THEN 'stopped'
                ELSE 'settled: ' || coalesce(outcome->'outcome'->>'kind', 'ok') END), 6 FROM jobs WHERE turn_id = :turn
        UNION ALL SELECT asked_at, format('waits for a person: %s of %s', kind, name), 7 FROM asks WHERE turn_id = :turn
        UNION ALL SELECT answered_at, format('answered: %s of %s', kind, name), 8 FROM asks WHERE turn_id = :turn
        UNION ALL SELECT created_at, 'words of the user arrived', 9 FROM steers WHERE turn_id = :turn
        UNION ALL SELECT ended_at, format('ended as %s (%s)%s', status, stop_reason,
                coalesce(': ' || (error->>'message'), '')), 10 FROM turns WHERE id = :turn
        UNION ALL SELECT delivered_at, 'webhook delivered', 11 FROM webhooks WHERE turn_id = :turn
        UNION ALL SELECT given_up_at, 'webhook given up', 12 FROM webhooks WHERE turn_id = :turn
    ) AS events WHERE at IS NOT NULL ORDER BY at, place LIMIT 1000
    """
)

_turns = msgspec.json.Decoder(dict[UUID, Activity])
_asks = msgspec.json.Decoder(tuple[OpenAsk, ...])
_jobs = msgspec.json.Decoder(tuple[OpenJob, ...])
_calls = msgspec.json.Decoder(tuple[RunningCall, ...])
_addresses = msgspec.json.Decoder(tuple[str, ...])


_DEEPEST = 5  # levels of agents that wait for other agents


class TurnStates:
    """Reads turns of all owners, so the caller must first check the access to a turn. `most_running` is the limit of
    running turns for an owner without a plan; it applies if no live replica has this limit in its row.
    """

    def __init__(self, database: Database, most_running: int | None = None) -> None:
        self._database = database
        self._most = most_running

    async def open(self, limit: int, status: Status | None = None) -> Sequence[TurnState]:
        """Returns the open turns of all owners, oldest first. With `status`, returns only turns that have this status.
        Includes the agents' turns for which these turns wait.
        """
        rows = await self._database.rows(OPEN_TURNS, limit=limit, status=status, most=self._most)
        return await self._with_children(await self._states(rows), _DEEPEST)

    async def of(self, turn: UUID) -> TurnState:
        """Returns the state of a turn, including the agents' turns for which the turn waits. Raises NotFound."""
        states = await self._with_children(await self._of([turn]), _DEEPEST)
        if not states:
            raise NotFound(f"There is no answer with the id {turn}.")
        return states[0]

    async def _of(self, turns: Sequence[UUID]) -> Sequence[TurnState]:
        return await self._states(await self._database.rows(TURN_STATES, turns=turns, most=self._most))

    async def _with_children(self, found: Sequence[TurnState], depth: int) -> Sequence[TurnState]:
        children = [job.child for state in found for job in state.jobs if job.child is not None]
        if not children or not depth:
            return found
        states = {state.id: state for state in await self._with_children(await self._of(children), depth - 1)}
        return [
            replace(state, jobs=tuple(replace(job, works=states.get(job.child or NO_ID)) for job in state.jobs))
            for state in found
        ]

    async def life(self, turn: UUID) -> Sequence[LifeEvent]:
        return [LifeEvent(row["at"], row["what"]) for row in await self._database.rows(LIFE, turn=turn)]

    async def _states(self, rows: Sequence[Row]) -> Sequence[TurnState]:
        reports = await self._database.rows(GET_REPORTS) if rows else ()
        reported = {row["replica"]: (row["reported"], _turns.decode(row["turns"])) for row in reports}
        return [_state_from(row, reported) for row in rows]


def _state_from(row: Row, reports: Mapping[UUID, tuple[float, Mapping[UUID, Activity]]]) -> TurnState:
    given: dict[str, Any] = {"reported": 0.0, "activity": None}
    if row["replica"] in reports:
        given["reported"], turns = reports[row["replica"]]
        given["activity"] = turns.get(row["id"])
    return TurnState(
        id=row["id"],
        chat=row["chat_id"],
        owner=row["owner"],
        status=row["status"],
        seconds=row["seconds"],
        queued=row["queued"],
        model=row["model"],
        attempt=row["attempt"],
        recoveries=row["recoveries"],
        cancel_requested=row["cancel_requested"],
        stop_reason=row["stop_reason"],
        error=row["error"],
        replica=row["address"],
        lease_left=row["lease_left"],
        behind=row["behind"],
        ahead=row["ahead"],
        owner_running=row["owner_running"],
        owner_limit=row["owner_limit"],
        claiming=row["claiming"],
        room=row["room"],
        declined=_addresses.decode(row["declined"] or "[]"),
        asks=_asks.decode(row["asks"] or "[]"),
        jobs=_jobs.decode(row["jobs"] or "[]"),
        calls=_calls.decode(row["calls"] or "[]"),
        readers=sum(turns[row["id"]].readers for _, turns in reports.values() if row["id"] in turns),
        trace=trace_id(row["trace"]),
        **given,
    )
