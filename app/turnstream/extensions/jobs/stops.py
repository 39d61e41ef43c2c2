"""Stops work that continues elsewhere, by calling the tool of the stopped job with the handle of the job."""

import asyncio
from typing import Final

import structlog
from structlog.contextvars import bound_contextvars

from turnstream.extensions.jobs.stopped_rows import StoppedJob, StoppedJobs
from turnstream.tools.tool import StoppedCall
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 20  # maximum number of jobs that one poll takes
_MOST_TRIES: Final = 10
_SECONDS: Final = 30.0  # time limit of one try, shorter than the time until the next try


class StopDelivery:
    """Calls the tools of this server to stop their work. A try is repeated if it fails or if its process dies."""

    def __init__(self, stopped: StoppedJobs, toolset: Toolset) -> None:
        self.jobs = stopped
        self._toolset = toolset

    async def deliver(self) -> bool:
        """Delivers due stops, and returns whether any stop was due."""
        taken = await self.jobs.take(self._toolset.names, _AT_ONCE)
        await asyncio.gather(*(self._deliver(job) for job in taken))
        return bool(taken)

    async def _deliver(self, job: StoppedJob) -> None:
        stopped = self._toolset.stopped(job.name)
        if stopped is not None:
            call = StoppedCall(
                owner=job.owner,
                turn_id=job.turn,
                tool_use_id=job.tool_use_id,
                idempotency_key=f"{job.turn}:{job.round}:{job.tool_use_id}",
                job=job.id,
                handle=job.handle,
            )
            with bound_contextvars(job=str(job.id), tool=job.name):
                try:
                    async with asyncio.timeout(_SECONDS):
                        await stopped(call)
                except Exception:
                    log.exception("job.stop_failed", tries=job.tries)
                    if job.tries < _MOST_TRIES:
                        return
                else:
                    log.info("job.stop_delivered", tries=job.tries)
        await self.jobs.forget(job.id)
