"""The runner of jobs claims due jobs, runs them, and stops jobs that their turn no longer needs. The runner also
delivers the reports of ended jobs.

A `JobKind` runs the call. The runner does the rest: it claims and fences jobs, stores their progress and their
outcomes, and handles crashes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol
from uuid import UUID

import structlog
from structlog.contextvars import bound_contextvars

from turnstream.domain.asks import job_question_id
from turnstream.domain.errors import ClaimLost, StatementRefused, StorageError
from turnstream.domain.plans import Plans
from turnstream.engine.preliminary import fitted_output
from turnstream.engine.recorder import to_the_end
from turnstream.engine.text_checks import NO_CHECKS, TextChecks
from turnstream.engine.tool_call import handle_text, measured, with_files_stored
from turnstream.engine.tool_gate import UNKNOWN_END, JobEnd, person_answer
from turnstream.extension import Context
from turnstream.extensions.jobs.report_rows import JobReports
from turnstream.extensions.jobs.reports import ReportDelivery
from turnstream.extensions.jobs.rows import ClaimedJob, Detachment, JobQuestion, Jobs, Progress
from turnstream.extensions.jobs.stopped_rows import StoppedJobs
from turnstream.extensions.jobs.stops import StopDelivery
from turnstream.extensions.jobs.tokens import RESULT_PATH, digest_of_token, new_token
from turnstream.kit.signals import Signals
from turnstream.kit.text import storable
from turnstream.libraries.extension_metrics import JOBS_RUNNING, JOBS_SETTLED
from turnstream.storage.database import FINAL_WRITE_TIMEOUT, retry_while_unavailable
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.rows import to_json
from turnstream.storage.runs.session import JOBS
from turnstream.telemetry import WAITS
from turnstream.tools.policy import repeatable
from turnstream.tools.tool import Detached, Outcome, PersonAnswer, PersonQuestion, ResultAddress, ToolContext
from turnstream.tools.toolset import Toolset
from turnstream.tracing import TRACING, Span

log = structlog.get_logger(__name__)

_REPORT = 1.0  # seconds between two writes of the progress of running jobs
_MOST_PROGRESS = 1000  # characters
_MOST_CHECKPOINT = 1_000_000  # characters of JSON
_LOOK_FOR_ANSWER = 5.0  # seconds between two polls for an answer, because notifications may be lost
_MOST_RUNS = 10  # limit for the runs of one job, because each run may crash its process
_FAILED: Final = "The server failed while it ran this call; its log says more."


class RunningJob:
    """A running job, and the progress that it reports to its turn."""

    task: asyncio.Task[None]

    def __init__(self, job: ClaimedJob, jobs: Jobs) -> None:
        self.job = job
        self._jobs = jobs
        self._message: str | None = None
        self._output: str | None = None
        self._questions = 0
        self.approvers: Sequence[str] = ()  # the only principals who may answer its questions
        self.answered = asyncio.Event()  # set when an answer may have arrived
        self.stopped = False
        self.detachment: Detachment | None = None

    def progress(self, message: str) -> None:
        self._message = storable(message[:_MOST_PROGRESS])

    def show(self, content: object) -> None:
        if (fitted := fitted_output(content)) is not None:
            self._output = to_json({"text": fitted.text, "data": fitted.data})

    def detach(self, detached: Detached) -> None:
        """Records that the run ends without an outcome, because the job continues elsewhere. A later call replaces an
        earlier one.
        """
        handle = handle_text(detached.handle)
        message = None if detached.message is None else storable(detached.message[:_MOST_PROGRESS])
        asked, after = detached.question, detached.after
        if asked is not None and self.job.job.reports:  # its turn may have ended, and then no person can be asked
            asked, after = None, 0
        question = None if asked is None else self._question(asked, 0)
        self.detachment = Detachment(handle, after, message, question)

    async def ask(self, asked: PersonQuestion) -> PersonAnswer | None:
        """Asks the person while the job runs, and waits for the answer. Raises ClaimLost if the job is over."""
        self._questions += 1
        question = self._question(asked, self._questions)
        if not await to_the_end(retry_while_unavailable(lambda: self._jobs.ask(self.job, question))):
            raise ClaimLost(f"job {self.job.id} is over, or another replica runs it")
        report_question(self.job.job.name)
        late = perf_counter() + asked.seconds
        while True:
            self.answered.clear()  # before the query: a notification during the query sets the event again
            answer = await retry_while_unavailable(lambda: self._jobs.answer_to(self.job, question))
            left = late - perf_counter()
            if answer is not None or left <= 0:
                return person_answer(answer)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_FOR_ANSWER)):
                    await self.answered.wait()

    def _question(self, asked: PersonQuestion, number: int) -> JobQuestion:
        id = job_question_id(self.job.job.tool_use_id, self.job.attempt, number)
        return JobQuestion(id, storable(json.dumps(asked.shown, ensure_ascii=False)), asked.seconds, self.approvers)

    async def result_address(self) -> ResultAddress:
        """Returns a new address to which a program may post the job's result. Raises ClaimLost if the job is over."""
        token = new_token()
        digest = digest_of_token(token)
        if not await to_the_end(retry_while_unavailable(lambda: self._jobs.admit(self.job, digest))):
            raise ClaimLost(f"job {self.job.id} is over, or another replica runs it")
        return ResultAddress(RESULT_PATH.format(job=self.job.id), token)

    def report(self) -> Progress | None:
        """Returns the progress since the last call of this method; None if there is none."""
        message, output, self._message, self._output = self._message, self._output, None, None
        if message is None and output is None:
            return None
        return Progress(self.job.turn, self.job.id, self.job.attempt, message, output)

    async def checkpoint(self, value: Any) -> None:
        """Stores a JSON value for the next run of the job. Raises ClaimLost if the job is over."""
        text = to_json(value)
        if len(text) > _MOST_CHECKPOINT:
            raise ValueError(
                f"a checkpoint must have at most {_MOST_CHECKPOINT:,} characters of JSON, not {len(text):,}"
            )
        if not await to_the_end(retry_while_unavailable(lambda: self._jobs.checkpoint(self.job, text))):
            raise ClaimLost(f"job {self.job.id} is over, or another replica runs it")


class JobKind(Protocol):
    """Runs the jobs of one kind."""

    @property
    def names(self) -> Collection[str]:
        """The tools whose jobs this kind can run at present."""
        ...

    async def run(self, running: RunningJob) -> JobEnd | Detachment:
        """Runs the job, and returns its end or its detachment. A repeated run decides whether the work may be repeated;
        a job with a handle may always be repeated. To stop the job, the runner cancels this call.
        """
        ...


class ToolJobs:
    """Runs the calls of the background tools of this server."""

    def __init__(self, toolset: Toolset, uploads: Uploads, plans: Plans, checks: TextChecks = NO_CHECKS) -> None:
        self._toolset = toolset
        self._uploads = uploads
        self._plans = plans
        self._checks = checks

    @property
    def names(self) -> Collection[str]:
        return self._toolset.names

    async def run(self, running: RunningJob) -> JobEnd | Detachment:
        job = running.job
        call, request = job.job, job.request
        may_run_again = any(spec.name == call.name and repeatable(spec) for spec in request.tools)
        if job.handle is None and job.attempt > (_MOST_RUNS if may_run_again else 1):
            return UNKNOWN_END
        plan = self._plans.of(job.owner, request.plan)
        running.approvers = self._toolset.policy(call.name, request.tools).approvers
        # Text that has not been checked is not shown. The outcome is checked when it is delivered to the turn.
        silent = self._checks.of(job.owner, plan.name).check_result is not None
        context = ToolContext(
            owner=job.owner,
            chat_id=job.chat,
            turn_id=job.turn,
            tool_use_id=call.tool_use_id,
            idempotency_key=f"{job.turn}:{call.round}:{call.tool_use_id}",
            progress=(lambda _: None) if silent else running.progress,
            preliminary=(lambda _: None) if silent else running.show,
            ask=None if call.reports else running.ask,
            documents=request.documents,
            offered=request.tools,
            checkpoint=running.checkpoint,
            checkpointed=job.checkpointed,
            deadline=job.deadline,
            job=job.id,
            handle=job.handle,
            answer=person_answer(job.answer),
            detach=running.detach,
            result_address=running.result_address,
        )
        invoke = partial(self._toolset.run, call.name, job.input, context, offered=request.tools)
        outcome = await measured(call.name, call.tool_use_id, job.input, invoke)
        if running.detachment is not None and not outcome.is_error:
            return running.detachment
        return JobEnd(await with_files_stored(outcome, self._uploads, job.owner, plan))


class JobRunner:
    """Runs up to `most` jobs at once. Polls every `poll_interval` seconds, and after notifications. At a shutdown,
    running jobs have `grace_period` seconds to finish.
    """

    def __init__(
        self,
        jobs: Jobs,
        kind: JobKind,
        reports: ReportDelivery,
        stops: StopDelivery,
        most: int,
        poll_interval: float,
        grace_period: float,
    ) -> None:
        self._jobs = jobs
        self._kind = kind
        self._reports = reports
        self._stops = stops
        self._stopping: asyncio.Task[bool] | None = None
        self._most = most
        self._poll_interval = poll_interval
        self._grace_period = grace_period
        self._running: dict[Any, RunningJob] = {}
        self._woken = asyncio.Event()
        self._draining = False
        self._in_doubt = False  # whether a claim whose answer was lost may have succeeded

    def follow(self, signals: Signals) -> None:
        signals.notified.act(self.receive)
        signals.missed.act(self._woken.set)
        signals.drain.act(self._begin_drain)

    def receive(self, payload: str) -> None:
        """Handles a notification that a replica has sent."""
        if payload == JOBS:
            self._woken.set()
            for running in self._running.values():
                running.answered.set()

    def _begin_drain(self) -> None:
        self._draining = True

    async def run(self) -> None:
        """Runs jobs until it is cancelled. Then waits for running jobs, and returns the jobs that do not finish to the
        queue.
        """
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    self._woken.clear()  # before the poll: a notification during the poll wakes the runner again
                    # The poll completes even if this task is cancelled, because a shutdown must know the claimed jobs.
                    await to_the_end(self._look(group))
                    pause = min(self._poll_interval, _REPORT) if self._running else self._poll_interval
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._woken.wait()
            finally:
                await self._drain()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        try:
            if reports := [report for each in self._running.values() if (report := each.report())]:
                await self._jobs.store_progress(reports)
            if self._running or self._in_doubt:
                await self._compare_with_rows()
            while True:
                free = 0 if self._draining else self._most - len(self._running)
                self._in_doubt = True
                claimed, reports_wait, stops_wait = await self._jobs.claim(free, self._kind.names)
                self._in_doubt = False
                for job in claimed:
                    self._start(group, job)
                if stops_wait and not self._draining and (self._stopping is None or self._stopping.done()):
                    # A task of its own, because the poll must not wait for tools.
                    self._stopping = group.create_task(self._deliver_stops(), name="stops of jobs")
                delivered = reports_wait and await self._reports.deliver()
                if not claimed and not delivered:
                    break
        except StorageError as error:
            log.error("jobs.unavailable", error=str(error))

    async def _deliver_stops(self) -> bool:
        with suppress(StorageError):  # the next poll finds the remaining stops
            while await self._stops.deliver():
                pass
        return True

    async def _compare_with_rows(self) -> None:
        """Stops jobs that are over, and releases jobs that this replica unknowingly claimed."""
        held, deleted = await self._jobs.held(), list[UUID]()
        for id, running in self._running.items():
            if held.get(id) != running.job.attempt and not running.stopped:
                running.stopped = True  # a second cancellation would interrupt the end of the job
                log.info("job.stopped", job=str(id), tool=running.job.job.name)
                running.task.cancel()
                if running.job.job.reports and id not in held:
                    deleted.append(id)
        if deleted:
            await self._reports.note_deleted(deleted)
        if unrun := {id for id, attempt in held.items() if attempt is None or id not in self._running}:
            await self._jobs.release(unrun)

    def _start(self, group: asyncio.TaskGroup, job: ClaimedJob) -> None:
        running = self._running[job.id] = RunningJob(job, self._jobs)
        running.task = group.create_task(self._supervise(running), name=f"job {job.id}")

    async def _supervise(self, running: RunningJob) -> None:
        job = running.job
        try:
            with (
                bound_contextvars(job=str(job.id), turn=str(job.turn)),
                JOBS_RUNNING.track_inprogress(),
                _span_of(job) as span,
            ):
                log.info("job.claimed", tool=job.job.name, attempt=job.attempt)
                await self._conclude(job, await self._end_of(running), span)
        finally:
            if self._running.get(job.id) is running:
                del self._running[job.id]
            self._woken.set()

    async def _conclude(self, job: ClaimedJob, end: JobEnd | Detachment, span: Span) -> None:
        if isinstance(end, Detachment):
            span.set(turnstream__outcome="detached")
            if await to_the_end(retry_while_unavailable(lambda: self._jobs.detach(job, end))):
                if end.question is not None:
                    report_question(job.job.name)
                log.info("job.detached", after=end.after)
                if end.pause is not None and end.pause < self._poll_interval:
                    asyncio.get_running_loop().call_later(end.pause, self._woken.set)
            else:
                log.warning("job.outcome_late", state="detached", kind="ok")
                if await to_the_end(retry_while_unavailable(lambda: self._stops.jobs.add(job, end.handle))):
                    self._woken.set()
            return
        span.set(turnstream__outcome=end.outcome.kind)
        await to_the_end(self._settle(job, end))

    async def _settle(self, job: ClaimedJob, end: JobEnd) -> None:
        if await self._settled(job, end):
            JOBS_SETTLED.labels(end.outcome.kind).inc()
            log.info("job.settled", state=end.state, kind=end.outcome.kind)
        else:  # the turn has ended, a result from elsewhere has settled the job, or another replica runs it
            log.warning("job.outcome_late", state=end.state, kind=end.outcome.kind)

    async def _end_of(self, running: RunningJob) -> JobEnd | Detachment:
        try:
            return await self._kind.run(running)
        except MemoryError:
            raise
        except Exception:
            log.exception("job.failed")
            return JobEnd(Outcome(_FAILED, is_error=True))

    async def _settled(self, job: ClaimedJob, end: JobEnd) -> bool:
        settle: Callable[[JobEnd], Awaitable[bool]] = partial(self._jobs.settle, job)
        try:
            return await retry_while_unavailable(lambda: settle(end))
        except StatementRefused:
            log.exception("job.failed")
            return await retry_while_unavailable(lambda: settle(JobEnd(Outcome(_FAILED, is_error=True))))

    async def _drain(self) -> None:
        """Waits for running jobs, then stops and releases the jobs that still run. Another replica runs these jobs
        again, or reports an unknown outcome.
        """
        self._draining = True
        running = list(self._running.values())
        if not running:
            return
        log.info("jobs.draining", running=len(running), grace_period=self._grace_period)
        tasks = [each.task for each in running]
        await asyncio.wait(tasks, timeout=self._grace_period)
        left = [each.job.id for each in running if not each.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=FINAL_WRITE_TIMEOUT)
        if left:
            with suppress(StorageError):
                await self._jobs.release(left)


def runner_of(context: Context, most: int, checks: TextChecks) -> JobRunner:
    """Returns the runner of a server. The runner follows the signals of its replica."""
    database, toolset, plans = context.database, context.toolset, context.plans
    kind = ToolJobs(toolset, Uploads(database), plans, checks)
    reports = ReportDelivery(JobReports(database), toolset, context.notify, plans, checks)
    jobs = Jobs(database, context.replica)
    stops = StopDelivery(StoppedJobs(database), toolset)
    runner = JobRunner(jobs, kind, reports, stops, most, context.poll_interval, context.grace_period)
    runner.follow(context.signals)
    return runner


def report_question(tool: str) -> None:
    """Logs and counts a question that a job asks a person."""
    log.info("job.asks", tool=tool)
    WAITS.labels("elicitation").inc()


def _span_of(job: ClaimedJob) -> AbstractContextManager[Span]:
    """Returns the span of a run. It belongs to the trace of the turn, whose own span may have ended."""
    return TRACING.span(
        f"job {job.job.name}",
        "CONSUMER",
        parent=job.request.trace,
        link=job.request.trace if job.attempt > 1 else None,
        gen_ai__conversation__id=str(job.chat),
        gen_ai__tool__call__id=job.job.tool_use_id,
        turnstream__turn=str(job.turn),
        turnstream__job=str(job.id),
        turnstream__attempt=job.attempt,
    )
