"""The runner of schedules in a replica: claims due ticks, posts their turns, and counts failures in a row."""

import asyncio
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256

import structlog

from turnstream.api.services import Services
from turnstream.domain.errors import Conflict, RequestRefused, StorageUnavailable, TooMany
from turnstream.extensions.schedules.posting import DueMessage, posted
from turnstream.extensions.schedules.store import DueSchedules, PendingRun
from turnstream.libraries.extension_metrics import SCHEDULE_RUNS
from turnstream.storage.chats.exchanges import IdempotencyKey

log = structlog.get_logger(__name__)

_BATCH = 20
# Seconds after which another replica posts the run of a dead replica. Repeated posts are harmless.
_LEASE = 15.0
_LOOK = 0.5  # seconds between two polls for due ticks
_LOCKED = 60.0  # seconds until another try, if a request could not be decrypted


@dataclass(frozen=True, slots=True)
class ScheduleRunner:
    """Runs due schedules. A schedule is paused after `most_failures` failures in a row."""

    due: DueSchedules
    most_failures: int

    async def run(self, services: Services) -> None:
        while True:
            work = await self.due.work()
            while work.ticks and (claimed := await self.due.claim()):
                id, due = claimed
                if due.missed:
                    SCHEDULE_RUNS.labels("missed").inc(due.missed)
                    log.warning("schedule.missed", schedule=str(id), ticks=due.missed)
            runs = await self.due.pending(_BATCH, _LEASE) if work.ticks or work.runs else ()
            for run in runs:
                await self._post(services, run)
            if work.ended:
                for id in await self.due.end_runs(_BATCH, self.most_failures, _count):
                    self._report_pause(str(id))
            if len(runs) < _BATCH:
                await asyncio.sleep(_LOOK)

    async def _post(self, services: Services, run: PendingRun) -> None:
        try:
            run = await self.due.opened(run)
        except (Conflict, StorageUnavailable) as error:
            await self.due.delayed(run, _LOCKED, str(error))
            return
        try:
            exchange = await posted(services, posting_of(run))
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


def _count(state: str) -> None:
    SCHEDULE_RUNS.labels(state).inc()


def posting_of(run: PendingRun) -> DueMessage:
    """Returns the message of a run. Its key is the same for each try, and the key's digest does not include the
    request, which may change between two tries.
    """
    key = f"schedule/{run.schedule}/{run.tick.astimezone(UTC).isoformat()}"
    unique = IdempotencyKey(key, sha256(key.encode()).digest())
    return DueMessage(run.owner, run.name, run.chat, run.request, run.plan, unique)
