"""Converts rows to frozen values and back. JSON columns reach the code as text, which this module decodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from turnstream.domain.asks import Ask, AskAnswer, Steer
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.jobs import Job
from turnstream.domain.kinds import WITH_FILES
from turnstream.domain.rounds import Round
from turnstream.domain.turns import ENDED, OPEN, TRANSITIONS, ToolSpec, Turn, TurnError, TurnRequest
from turnstream.storage.database import Row


def sql_list(values: Iterable[str]) -> str:
    """Returns an SQL list of string literals, for `IN`."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


OPEN_STATUSES = sql_list(status for status in TRANSITIONS if status in OPEN)
ENDED_STATUSES = sql_list(status for status in TRANSITIONS if status in ENDED)
MAY_NAME_UPLOADS = f"type IN {sql_list(WITH_FILES)}"  # a condition for rows of `blocks`

_LONGEST_SHARED = 32_768  # characters: a longer request, or longer tools of a request, are not cached

_request = msgspec.json.Decoder(TurnRequest)
_tools = msgspec.json.Decoder(tuple[ToolSpec, ...])
_error = msgspec.json.Decoder(TurnError)
_answer = msgspec.json.Decoder(AskAnswer)
_blocks = msgspec.json.Decoder(tuple[Block, ...])
_jobs = msgspec.json.Decoder(tuple[Job, ...])
_preliminary = msgspec.json.Decoder(tuple[PreliminaryOutput, ...])


# A condition for rows of `asks`: a job has asked the question (`job_question_id`).
IS_OF_JOB: Final = "asks.tool_use_id ~ '#j[0-9]+[.][0-9]+$'"
_CALL_OF_ASK: Final = "regexp_replace(asks.tool_use_id, '#[^#]*$', '')"
# A condition for rows of `asks` joined with their turns: the run that asked has not ended (`Turn.waits_for`).
IS_ASKED: Final = f"""(asks.kind <> 'elicitation' OR CASE WHEN {IS_OF_JOB} THEN EXISTS (
        SELECT FROM jobs WHERE jobs.turn_id = asks.turn_id AND jobs.round = asks.round
          AND jobs.tool_use_id = {_CALL_OF_ASK} AND jobs.attempt = asks.attempt AND jobs.settled_at IS NULL
    ) ELSE asks.attempt = turns.attempt AND turns.status = 'running' END)"""
# A condition for rows of `asks` joined with their turns: the ask waits for a person. If the call of a client tool can
# expire, it waits for a program. An elicitation stops waiting when its call has a result.
WAITS = f"""answer IS NULL AND (expires_at IS NULL OR expires_at > now() AND asks.kind <> 'client')
    AND turns.status IN {OPEN_STATUSES}
    AND NOT turns.cancel_requested AND {IS_ASKED} AND (asks.kind <> 'elicitation' OR NOT EXISTS (
        SELECT FROM blocks WHERE blocks.turn_id = asks.turn_id AND blocks.round = asks.round
          AND blocks.type = 'tool_result' AND blocks.tool_use_id = {_CALL_OF_ASK}
    ))"""


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


# A condition for rows of `jobs` joined with their turns: the job is open. A job that reports outlasts its turn.
IS_OPEN_JOB: Final = f"settled_at IS NULL AND (status IN {OPEN_STATUSES} OR reports AND status <> 'cancelled')"
# The members of a replica's `configuration` that contain limits from its settings.
OWNER_RUNNING_TURNS: Final = "running turns of an owner"
REPLICA_TURNS: Final = "turns at once"
# A regular expression for the text of a UUID.
ID_FORM: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
# SQL for the last columns of a turn. JOBS is the column of its jobs; PRELIMINARY adds the column of its tools'
# preliminary outputs. In the statement, `turns` must name the table or some of its rows. The outcome of a job is
# included only until its call has the result; the delivery of a report is always included.
JOBS: Final = f"""CASE WHEN turns.asked > 0 THEN (
        SELECT json_agg(json_build_object(
            'id', jobs.id, 'round', round, 'tool_use_id', tool_use_id, 'name', jobs.name, 'kind', kind,
            'progress', progress, 'settled', jobs.settled_at IS NOT NULL, 'since', jobs.created_at,
            'attempt', jobs.attempt,
            'state', CASE WHEN jobs.replica IS NOT NULL THEN 'running'
                WHEN handle IS NULL THEN 'due' ELSE 'detached' END,
            'child', CASE WHEN kind = 'child' AND handle->>'turn' ~ '{ID_FORM}' THEN (
                SELECT json_build_object('chat', child.chat_id, 'turn', child.id, 'status', child.status,
                    'cost', (SELECT sum(cost)::float FROM rounds WHERE rounds.turn_id = child.id))
                FROM turns AS child WHERE child.id = CAST(handle->>'turn' AS uuid)
            ) END,
            'outcome', CASE WHEN state = 'started' THEN outcome::text END, 'reports', reports, 'delivery', delivery,
            'delivered_to', delivered_to, 'delivered_round', delivered_round,
            'ended', CASE WHEN reports THEN outcome #>> '{{outcome,kind}}' END
        ) ORDER BY round, jobs.created_at, tool_use_id)
        FROM jobs LEFT JOIN tool_calls USING (turn_id, round, tool_use_id)
        WHERE turn_id = turns.id AND (turns.status IN {OPEN_STATUSES} OR reports)
    ) END AS jobs"""
PRELIMINARY: Final = f"""CASE WHEN turns.status IN {OPEN_STATUSES} THEN (
        SELECT json_agg(json_build_object(
            'round', round, 'tool_use_id', tool_use_id, 'name', name,
            'text', preliminary->>'text', 'data', preliminary->'data'
        ) ORDER BY round, tool_use_id)
        FROM tool_calls WHERE turn_id = turns.id AND state = 'started' AND preliminary IS NOT NULL
    ) END AS preliminary, {JOBS}"""


# SQL for the tools of a turn whose row refers to a tool set; null if the request itself contains the tools.
TOOLS: Final = """CASE WHEN turns.tool_set IS NOT NULL THEN (
        SELECT tools FROM tool_sets WHERE digest = turns.tool_set
            AND tool_sets.owner = (SELECT chats.owner FROM chats WHERE chats.id = turns.chat_id)
    ) END"""
WITH_TOOLS: Final = f"turns.*, {TOOLS} AS tools"


def requests_from(rows: Iterable[Row]) -> Mapping[tuple[str, str | None], TurnRequest]:
    """Returns the decoded requests of turns, by their texts. Turns with equal texts share one object."""
    texts = {(row["request"], row["tools"]) for row in rows if row["request"] is not None}
    return {each: _request_from(*each) for each in texts}


def _request_from(text: str, tools: str | None) -> TurnRequest:
    """Decodes a request. Equal texts share one cached object, because most turns have one of a few requests."""
    request = _shared_request(text) if len(text) <= _LONGEST_SHARED else _request.decode(text)
    if tools is None:
        return request
    return replace(request, tools=_shared_tools(tools) if len(tools) <= _LONGEST_SHARED else _tools.decode(tools))


@lru_cache(maxsize=256)
def _shared_request(text: str) -> TurnRequest:
    return _request.decode(text)


@lru_cache(maxsize=256)
def _shared_tools(text: str) -> tuple[ToolSpec, ...]:
    return _tools.decode(text)


def turn_from(
    row: Row,
    rounds: Iterable[Round] = (),
    blocks: Iterable[Block] = (),
    asks: Iterable[Ask] = (),
    steers: Iterable[Steer] = (),
    requests: Mapping[tuple[str, str | None], TurnRequest] = MappingProxyType({}),
) -> Turn:
    """Builds a turn from its row and contents. `requests` maps the texts of requests to decoded requests."""
    texts = None if row["request"] is None else (row["request"], row["tools"])
    return Turn(
        id=row["id"],
        chat_id=row["chat_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        status=row["status"],
        attempt=row["attempt"],
        request=None if texts is None else requests.get(texts) or _request_from(*texts),
        cancel_requested=row["cancel_requested"],
        recoveries=row["recoveries"],
        deaths=row["deaths"],
        arrivals=row["arrivals"],
        hook_failures=row["hook_failures"],
        stop_reason=row["stop_reason"],
        error=_error.decode(row["error"]) if row["error"] is not None else None,
        usage=from_json(row["usage"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        forked_from=row["forked_from"],
        lineage=tuple(row["lineage"] or ()),
        rounds=tuple(rounds),
        blocks=tuple(blocks),
        asks=tuple(asks),
        steers=tuple(steers),
        preliminary=_preliminary.decode(shown) if (shown := row.get("preliminary")) else (),
        jobs=jobs_from(row),
    )


def jobs_from(row: Row) -> tuple[Job, ...]:
    return _jobs.decode(jobs) if (jobs := row.get("jobs")) else ()


def round_from(row: Row) -> Round:
    return Round(
        number=row["number"],
        attempt=row["attempt"],
        model=row["model"],
        messages=row["messages"],
        stop_reason=row["stop_reason"],
        usage=from_json(row["usage"]),
        request_id=row["request_id"],
        data=row["data"],
        sealed_by=row["sealed_by"],
        started_at=row["started_at"],
        first_delta_at=row["first_delta_at"],
        sealed_at=row["sealed_at"],
        estimated_tokens=row["estimated_tokens"],
        cost=None if row["cost"] is None else float(row["cost"]),
    )


def block_from(row: Row) -> Block:
    return Block(
        index=row["index"],
        round=row["round"],
        attempt=row["attempt"],
        type=row["type"],
        text=row["text"],
        data=row["data"],
        tool_use_id=row["tool_use_id"],
        name=row["name"],
        is_error=row["is_error"],
        interrupted=row["interrupted"],
        notes=row["notes"],
        client_data=row["client_data"],
    )


def ask_from(row: Row) -> Ask:
    return Ask(
        round=row["round"],
        tool_use_id=row["tool_use_id"],
        name=row["name"],
        kind=row["kind"],
        digest=row["digest"],
        attempt=row["attempt"],
        expires_at=row["expires_at"],
        answer=answer_from(row["answer"]),
        tool_digest=row["tool_digest"],
        asked_at=row["asked_at"],
        answered_at=row["answered_at"],
        question=row["question"],
        approvers=tuple(row["approvers"] or ()),
    )


def answer_from(text: str | None) -> AskAnswer | None:
    return None if text is None else _answer.decode(text)


def steer_from(row: Row) -> Steer:
    return Steer(row["id"], _blocks.decode(row["blocks"]), row["stored"])


def columns_of(blocks: Sequence[Block]) -> dict[str, list[Any]]:
    """Returns one list per column, for `unnest`."""
    return {
        "indexes": [block.index for block in blocks],
        "block_rounds": [block.round for block in blocks],
        "attempts": [block.attempt for block in blocks],
        "types": [block.type for block in blocks],
        "texts": [block.text for block in blocks],
        "datas": [block.data for block in blocks],
        "tool_use_ids": [block.tool_use_id for block in blocks],
        "names": [block.name for block in blocks],
        "is_errors": [block.is_error for block in blocks],
        "interrupteds": [block.interrupted for block in blocks],
        "notes": [block.notes for block in blocks],
        "wholes": [None] * len(blocks),
        "client_datas": [block.client_data for block in blocks],
    }


def columns_of_rounds(turns: Sequence[UUID], rounds: Sequence[Round]) -> dict[str, Sequence[Any]]:
    """Returns one list per column, for `unnest`. `turns` has the turn of each round."""
    return {
        "round_turns": turns,
        "numbers": [round.number for round in rounds],
        "round_attempts": [round.attempt for round in rounds],
        "messages": [round.messages for round in rounds],
        "models": [round.model for round in rounds],
        "stop_reasons": [round.stop_reason for round in rounds],
        "usages": [to_json(round.usage) for round in rounds],
        "request_ids": [round.request_id for round in rounds],
        "round_datas": [round.data for round in rounds],
        "sealed_bys": [round.sealed_by for round in rounds],
        "started_ats": [round.started_at for round in rounds],
        "first_delta_ats": [round.first_delta_at for round in rounds],
        "sealed_ats": [round.sealed_at for round in rounds],
        "estimates": [round.estimated_tokens for round in rounds],
        "round_costs": [round.cost for round in rounds],
    }
