"""Starts and watches the turns of agents. Each such turn has its own chat, which belongs to the calling turn."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import structlog

from turnstream.domain.assembly import HANDOFF
from turnstream.domain.charges import root_of
from turnstream.domain.chats import Chat
from turnstream.domain.errors import NotFound, RequestRefused, StorageUnavailable, TooMany
from turnstream.domain.kinds import TEXT
from turnstream.domain.limits import seconds_used, spent_budget
from turnstream.domain.output import output_of
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.engine.hooks import Hooks, TurnEnded
from turnstream.extension import Context
from turnstream.extensions.agents.agent import Agent, output_spec
from turnstream.extensions.agents.context import message_of_task
from turnstream.kit.ids import new_id
from turnstream.llm.models.abilities import within_abilities
from turnstream.storage.chats.exchanges import Exchanges, IdempotencyKey, KeyTaken
from turnstream.storage.chats.turns import CANCEL_TURN, Turns
from turnstream.storage.contents import CHATS
from turnstream.storage.database import Statement
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.rows import OPEN_STATUSES
from turnstream.storage.runs.queue import QUEUED, UPDATED
from turnstream.storage.runs.session import CHANNEL, JOBS
from turnstream.tools.tool import Outcome, ToolContext

log = structlog.get_logger(__name__)

_INTERVAL = 5.0  # seconds between two searches for children whose call is over
_MOST_TITLE = 80

_FAMILY = """family AS (
        SELECT CAST(:turn AS uuid) AS id
        UNION ALL
        SELECT turns.id FROM family JOIN chats ON of_turn = family.id JOIN turns ON chat_id = chats.id
    )"""
# Returns the number of agents above the chat, the number of children of the turn, and the title of the root chat.
GET_FAMILY = Statement(
    """
    WITH RECURSIVE above AS (
        SELECT id, title, of_turn, 0 AS depth FROM chats WHERE id = :chat
        UNION ALL
        SELECT chats.id, chats.title, chats.of_turn, depth + 1
        FROM above JOIN turns ON turns.id = above.of_turn JOIN chats ON chats.id = chat_id
    )
    SELECT max(depth) AS depth, (SELECT title FROM above ORDER BY depth DESC LIMIT 1) AS title,
        (SELECT id FROM above ORDER BY depth DESC LIMIT 1) AS root,
        (SELECT count(*) FROM chats WHERE of_turn = :turn) AS children
    FROM above
    """,
    opens=[CHATS.named(id="root")],
)
# Returns the progress of the turn and its descendants, and whether one of them waits for a person.
GET_PROGRESS = Statement(
    f"""
    WITH RECURSIVE {_FAMILY}
    SELECT (SELECT count(*) FROM rounds WHERE turn_id IN (SELECT id FROM family)) AS rounds,
        EXISTS (SELECT FROM asks WHERE turn_id IN (SELECT id FROM family) AND answer IS NULL) AS asks
    """
)
EXTEND_DEADLINE = Statement(
    """
    UPDATE jobs SET deadline = greatest(deadline, now() + make_interval(secs => CAST(:seconds AS double precision)))
    WHERE id = :job AND settled_at IS NULL RETURNING id
    """
)
PUT_CHILD = Statement("UPDATE chats SET of_turn = :turn WHERE id = :chat RETURNING id")
WAKE_WORKERS = Statement(f"SELECT pg_notify({CHANNEL}, '{QUEUED}')")
# When a child ends, `wake_parent` wakes the job in the same transaction, unless another transaction has locked the row
# of the job. This statement covers that case. A person may set the same labels, so the chat must belong to the job's
# turn.
WAKE_PARENT = Statement(
    f"""
    WITH woken AS (
        UPDATE jobs SET due_at = clock_timestamp() FROM chats
        WHERE chats.id = :chat AND jobs.turn_id = of_turn AND jobs.id::text = :job AND settled_at IS NULL
        RETURNING jobs.id
    )
    SELECT id, pg_notify({CHANNEL}, '{JOBS}') FROM woken
    """
)
# A child is needed until its job is over. Only the first turn of the chat is the child: if a person continues the chat,
# the later turns have the same labels.
GET_UNWANTED = Statement(
    f"""
    SELECT turns.id, pg_notify({CHANNEL}, '{UPDATED} ' || turns.id) FROM chats JOIN turns ON chat_id = chats.id
    WHERE of_turn IS NOT NULL AND turns.status IN {OPEN_STATUSES} AND NOT cancel_requested
      AND request->'labels'->>'job' IS NOT NULL
      AND NOT EXISTS (
        SELECT FROM turns AS before
        WHERE before.chat_id = chats.id AND before.role = 'assistant' AND before.id < turns.id
    ) AND NOT EXISTS (
        SELECT FROM jobs WHERE jobs.turn_id = of_turn AND jobs.id::text = request->'labels'->>'job'
          AND jobs.settled_at IS NULL
    )
    """
)


class Children(Hooks):
    """Starts the turns of agents, wakes the jobs of ended turns, and stops turns whose call is over. Agents may call
    agents up to `depth` levels deep, and a turn may call at most `most` agents.
    """

    def __init__(self, context: Context, depth: int, most: int) -> None:
        self._context = context
        self._database = context.database
        self._turns = Turns(context.database)
        self._exchanges = Exchanges(context.database)
        self._accounts = Accounts(context.database)
        self._depth = depth
        self._most = most
        self._look_now = asyncio.Event()

    async def begin(self, agent: Agent, call: ToolContext, task: str) -> dict[str, str] | Outcome:
        """Posts the turn of a call, and returns its handle. If the call is repeated, no second turn is posted. Returns
        an outcome if no turn may start.
        """
        family = await self._database.row(GET_FAMILY, owner=call.owner, chat=call.chat_id, turn=call.turn_id)
        if family is None or family["depth"] is None:
            return Outcome("The chat of this call was deleted.", kind="refused")
        key = IdempotencyKey(f"job:{call.job}", sha256(task.encode()).digest())
        if (begun := await self._exchanges.find(call.owner, key)) is None:
            if family["depth"] >= self._depth:
                return Outcome(f"Agents may call agents {self._depth} deep, and did.", kind="refused")
            if family["children"] >= self._most:
                return Outcome(f"A turn may call agents {self._most} times, and did.", kind="refused")
            parent = await self._turns.get(call.owner, call.chat_id, call.turn_id)
            assert parent.request is not None
            root = root_of(parent) or parent.id
            if (limits := await self._left_of(call.owner, parent, root)) is None:
                return Outcome("A budget of the turn is used up, with what its agents have used.", kind="refused")
            try:
                given = replace(parent.request, limits=limits, root_turn=root)
                request = self._request_of(agent, given, call)
            except RequestRefused as error:
                return Outcome(f"The agent {agent.name} cannot work: {error.detail}", is_error=True)
            now, title = datetime.now(UTC), f"{family['title'] or 'Chat'}: {agent.name}"
            chat = Chat(new_id(), call.owner, title[-_MOST_TITLE:], agent.prompt, {}, created_at=now, updated_at=now)
            message = message_of_task(await self._path_of(agent, parent), agent.context, agent.context_blocks, task)
            most = self._context.plans.of(call.owner, parent.request.plan).queued_turns
            try:
                async with self._exchanges.in_new_chat(chat, key, most) as draft:
                    begun = await draft.create(message, request, None)
                    await draft.connection.row(PUT_CHILD, chat=chat.id, turn=call.turn_id)
                    await draft.connection.row(WAKE_WORKERS)
                log.info("agent.begun", agent=agent.name, child=str(begun.assistant_turn.id))
            except KeyTaken:
                begun = await self._exchanges.find(call.owner, key)
            except TooMany as error:
                return Outcome(error.detail, kind="unavailable")
        assert begun is not None
        return {"chat": str(begun.assistant_turn.chat_id), "turn": str(begun.assistant_turn.id)}

    async def _path_of(self, agent: Agent, parent: Turn) -> Sequence[Turn]:
        """Returns the part of the calling turn's path that the agent may see."""
        if agent.context == "none" or parent.parent_id is None:
            return [parent]
        return [*await self._turns.path_to(parent.parent_id), parent]

    async def _left_of(self, owner: str, parent: Turn, root: UUID) -> Limits | None:
        """Returns the limits for a child, or None if a budget is used up. The whole family shares the budgets of tokens
        and cost. The time runs for all turns at once, so the child gets the remaining time of the calling turn.
        """
        assert parent.request is not None
        limits, now = parent.request.limits, datetime.now(UTC)
        family = await self._accounts.family_use(owner, root)
        if spent_budget(parent, now, family) is not None:
            return None
        if limits.budget_seconds is None:
            return limits
        return replace(limits, budget_seconds=limits.budget_seconds - seconds_used(parent, now))

    def _request_of(self, agent: Agent, parent: TurnRequest, call: ToolContext) -> TurnRequest:
        """Returns the request for a child: the request of the calling turn, changed by the agent's own options."""
        limits, params = parent.limits, without_format(parent.params)
        if agent.max_rounds is not None:
            limits = replace(limits, max_rounds=agent.max_rounds, hard_max_rounds=None)
        model = self._context.models.behind(agent.model or parent.model)
        if model != self._context.models.behind(parent.model):
            params = {}
        params.pop("tool_choice", None)
        request = replace(
            parent,
            model=model.id,
            system=agent.prompt,
            params=params,
            tools=self._context.toolset.specs(agent.tools),
            limits=limits,
            provider_tools=(),
            output=None,
            labels={"agent": agent.name, "job": str(call.job)},
        )
        request = within_abilities(self._context.models, model, request, output_spec(agent))
        return self._context.toolset.offered(request)

    async def look(self, agent: Agent, owner: str, handle: Any) -> Outcome | None:
        """Returns the outcome of a child, or None while the child runs."""
        handle = {"chat": handle["chat"], "turn": handle["turn"]}
        try:
            turn = await self._turns.get(owner, UUID(handle["chat"]), UUID(handle["turn"]))
        except NotFound:
            return Outcome(f"The chat of the agent {agent.name} was deleted.", is_error=True)
        if not turn.ended:
            return None
        text, output, data = answer_of(turn), output_of(turn), {"agent": agent.name, **handle}
        if turn.status == "complete" and agent.handoff and (answer := output or text):
            return Outcome(answer, data=data, notes={HANDOFF: True})
        if output is not None:
            return Outcome(output, data=data)
        if turn.status == "complete":
            return Outcome(text or f"The agent {agent.name} has ended without words.", data=data)
        reason = f": {turn.error.message}" if turn.error else "."
        words = f"The agent {agent.name} did not end its work ({turn.status}){reason}"
        return Outcome(f"{words}\n\nIt had written:\n\n{text}" if text else words, is_error=True, data=data)

    async def progress(self, handle: Any, job: UUID | None, seconds: float) -> dict[str, Any]:
        """Returns the handle with the progress of the child. If the child or a descendant has made progress since the
        handle, the deadline of the call moves to `seconds` from now. It also moves while one of them waits for a
        person, because such a wait has its own time limit.
        """
        now = await self._database.row(GET_PROGRESS, turn=UUID(handle["turn"]))
        assert now is not None
        if now["asks"] or now["rounds"] > handle.get("rounds", 0):
            await self._database.row(EXTEND_DEADLINE, job=job, seconds=seconds)
        return {**handle, "rounds": now["rounds"]}

    async def turn_ended(self, event: TurnEnded) -> None:
        """Starts a search for children of the ended turn. If the ended turn is a child, wakes its job once more."""
        if any(block.is_call for block in event.turn.blocks):
            self._look_now.set()  # the turn may have children
        job = None if event.turn.request is None else event.turn.request.labels.get("job")
        if job is not None:
            await self._database.rows(WAKE_PARENT, chat=event.turn.chat_id, job=job)

    async def run(self) -> None:
        """Stops the turns of agents whose call is over, until this task is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._look_now.wait()
            self._look_now.clear()
            with suppress(StorageUnavailable):
                await self.stop_unwanted()

    async def stop_unwanted(self) -> int:
        """Cancels the turns of agents whose call is over, and returns the number of these turns."""
        unwanted = await self._database.rows(GET_UNWANTED)
        for row in unwanted:
            await self._database.row(CANCEL_TURN, turn=row["id"], withdraws=False)
            log.info("agent.stopped", child=str(row["id"]))
        if unwanted:
            await self._database.row(WAKE_WORKERS)
        return len(unwanted)


def answer_of(turn: Turn) -> str:
    """Returns the text after the last call. The text may span several rounds, because an interrupted reply continues in
    the next round.
    """
    calls = [block.round for block in turn.blocks if block.is_call]
    return "".join(block.text for block in turn.blocks if block.type == TEXT and block.round > max(calls, default=-1))


def without_format(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters without those that set a format of the reply."""
    kept = {name: value for name, value in params.items() if name not in {"response_format", "output_config"}}
    config = {name: value for name, value in (params.get("output_config") or {}).items() if name != "format"}
    return {**kept, "output_config": config} if config else kept
