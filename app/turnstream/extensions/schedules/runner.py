"""The runner of a replica: claims due ticks, posts their turns, and counts failures in a row."""

import asyncio
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256

import structlog

from turnstream.api.caller import CALLER
from turnstream.api.exchange import post_in_new_chat, post_message
from turnstream.api.services import Services
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused, TooMany
from turnstream.domain.identity import Identity
from turnstream.extensions.schedules.schemas import ScheduledTurn
from turnstream.extensions.schedules.store import DueSchedules, PendingRun
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import Exchange, IdempotencyKey, Target
from turnstream.storage.database import OWNER
from turnstream.telemetry import SCHEDULE_RUNS

log = structlog.get_logger(__name__)

_BATCH = 20
# Seconds after which another replica posts a run whose replica has died. Posting it twice is harmless.
_LEASE = 15.0
_LOOK = 0.5  # seconds between two looks for what is due


@dataclass(frozen=True, slots=True)
class ScheduleRunner:
    """A schedule is paused after `most_failures` failures in a row."""

    due: DueSchedules
    most_failures: int

    async def run(self, services: Services) -> None:
        while True:
            while claimed := await self.due.claim():
                id, due = claimed
                if due.missed:
                    SCHEDULE_RUNS.labels("missed").inc(due.missed)
                    log.warning("schedule.missed", schedule=str(id), ticks=due.missed)
            runs = await self.due.pending(_BATCH, _LEASE)
            for run in runs:
                await self._post(services, run)
            ended = lambda state: SCHEDULE_RUNS.labels(state).inc()  # noqa: E731
            for id in await self.due.end_runs(_BATCH, self.most_failures, ended):
                self._report_pause(str(id))
            if len(runs) < _BATCH:
                await asyncio.sleep(_LOOK)

    async def _post(self, services: Services, run: PendingRun) -> None:
        # The owner and the credential are set for the statements of this run alone.
        posting = asyncio.create_task(_exchange(services, run), context=copy_context())
        try:
            exchange = await posting
        except TooMany as error:
            if run.late:
                await self._refuse(run, error.detail)
            else:
                await self.due.delayed(run, max(1.0, error.retry_after), error.detail)
        except RequestRefused as error:
            await self._refuse(run, error.detail)
        else:
            turn = exchange.assistant_turn
            await self.due.started(run, turn.id, turn.chat_id)
            SCHEDULE_RUNS.labels("started").inc()

    async def _refuse(self, run: PendingRun, error: str) -> None:
        log.warning("schedule.refused", schedule=str(run.schedule), error=error)
        SCHEDULE_RUNS.labels("failed").inc()
        if await self.due.refused(run, error, self.most_failures):
            self._report_pause(str(run.schedule))

    def _report_pause(self, schedule: str) -> None:
        SCHEDULE_RUNS.labels("paused").inc()
        log.error("schedule.paused", schedule=schedule, failures=self.most_failures)


def key_of_run(run: PendingRun) -> IdempotencyKey:
    """The same for each try. Its digest has no part of the request, which may be edited between two tries."""
    key = f"schedule/{run.schedule}/{run.tick.astimezone(UTC).isoformat()}"
    return IdempotencyKey(key, sha256(key.encode()).digest())


async def _exchange(services: Services, run: PendingRun) -> Exchange:
    OWNER.set(run.owner)
    CALLER.set(Identity(run.owner, plan=run.plan))
    new, key = ScheduledTurn.model_validate_json(run.request), key_of_run(run)
    if run.chat is not None:
        return await post_message(services, new, Target(run.owner, run.chat, "newest", new.on_busy), key)
    now = CLOCK.now()
    return await post_in_new_chat(
        services, new, Chat(new_id(), run.owner, run.name, None, {}, created_at=now, updated_at=now), key
    )
