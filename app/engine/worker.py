"""Claims queued turns and runs each in a task of its own."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, assert_never
from uuid import UUID

import structlog

from app.domain.errors import ClaimLost, StorageUnavailable
from app.domain.turns import Status, Turn, TurnError
from app.engine.accounts import account_for
from app.engine.calls import Calls, Key
from app.engine.executor import Executor, ModelPolicy
from app.engine.files import Files
from app.engine.frame_clock import FrameClock
from app.engine.hooks import HookRunner, Hooks, TurnEnded
from app.engine.recorder import Recorder, to_the_end
from app.llm.provider import Provider
from app.storage.database import FINAL_WRITE_TIMEOUT, Database, retry_while_unavailable
from app.storage.runs.journal import Journal
from app.storage.runs.queue import Queue
from app.storage.runs.record import Records
from app.storage.turns import Turns
from app.storage.uploads import Uploads
from app.stream.directory import Directory
from app.stream.live import LiveView
from app.telemetry import TURNS_RUNNING
from app.tools.toolset import Toolset

log = structlog.get_logger(__name__)

_INTERNAL = TurnError("internal_error", "The server failed while it ran this turn; its log says more.")

Reason = Literal["cancel", "release", "lost"]

# What replicas ring each other for.
QUEUED = "queued"
CANCEL = "cancel"
TOLD = "told"

# What one claim takes at most: a burst is shared between replicas, and between turns of one loop iteration.
_CLAIM = 50


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """`poll_interval` and `grace_period` are seconds."""

    concurrent_turns: int = 1000
    poll_interval: float = 1.0
    grace_period: float = 10.0
    model: ModelPolicy = field(default_factory=ModelPolicy)


@dataclass(slots=True)
class Run:
    """A turn that runs here. `reason` says why it shall stop; its task is cancelled for it once it is `started`. On
    `told`, somebody has said something.
    """

    task: asyncio.Task[None] = field(init=False)
    started: bool = False
    reason: Reason | None = None
    updated: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    def __init__(
        self,
        database: Database,
        queue: Queue,
        directory: Directory,
        provider_for: Callable[[str], Provider],
        toolset: Toolset,
        policy: WorkerPolicy,
        clock: FrameClock,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        self._database = database
        self._queue = queue
        self._turns = Turns(database)
        self._journal = Journal(database)
        self._uploads = Uploads(database)
        self._directory = directory
        self._provider_for = provider_for
        self._toolset = toolset
        self._policy = policy
        self._clock = clock
        self._observers = HookRunner(hooks)
        self._runs: dict[UUID, Run] = {}
        self._rung = asyncio.Event()
        self._pass_on = False
        self._draining = False

    @property
    def draining(self) -> bool:
        return self._draining

    def wake(self) -> None:
        """There may be a turn to claim, here or, where this replica is full, elsewhere."""
        self._pass_on = True
        self._rung.set()

    def receive(self, payload: str) -> None:
        """What another replica rang for."""
        what, _, turn = payload.partition(" ")
        if what == QUEUED:
            self._rung.set()
        elif what in {CANCEL, TOLD} and (run := self._runs.get(UUID(turn))):
            if what == CANCEL:
                _interrupt(run, "cancel")
            else:
                run.updated.set()

    async def cancel(self, turn: UUID) -> None:
        """Stops a turn whose cancellation is in its row, wherever it runs."""
        if run := self._runs.get(turn):
            _interrupt(run, "cancel")
        else:
            self.wake()
            await self._ring_all(f"{CANCEL} {turn}")

    async def refresh(self, turn: UUID) -> None:
        """Has a turn look at what was said to it, wherever it runs, and claimed where it waited for that."""
        if run := self._runs.get(turn):
            run.updated.set()
        else:
            self.wake()
            await self._ring_all(f"{TOLD} {turn}")

    async def drain(self) -> None:
        """Claims nothing any more, gives running turns the grace period, and hands the rest back uncharged. The second
        time it waits for nothing.
        """
        again, self._draining = self._draining, True
        tasks = [run.task for run in self._runs.values()]
        if tasks and not again:
            log.info("worker.draining", running=len(tasks), grace_period=self._policy.grace_period)
            await asyncio.wait(tasks, timeout=self._policy.grace_period)
        for run in self._runs.values():
            _interrupt(run, "release")
        await self._end_all()
        await self._ring_all(QUEUED)

    async def _ring_all(self, what: str) -> None:
        """At every replica. It may be lost: the rows say it too, and are looked at in time."""
        with suppress(StorageUnavailable):
            await self._queue.notify(what)

    async def _end_all(self) -> None:
        """Postgres may be away for long: then nobody waits for what is to be written, and whoever takes the turns over
        finds what the rows hold.
        """
        patience = FINAL_WRITE_TIMEOUT
        while tasks := [run.task for run in self._runs.values() if not run.task.done()]:
            _, stuck = await asyncio.wait(tasks, timeout=patience)
            for task in stuck:  # perhaps more than once: a write is not let go of at the first word
                task.cancel()
            patience = 0.1

    async def run(self) -> None:
        """For ever; when it is cancelled, it drains."""
        async with asyncio.TaskGroup() as group:
            try:
                await self._claim_for_ever(group)
            finally:
                await self.drain()

    async def _claim_for_ever(self, group: asyncio.TaskGroup) -> None:
        compared = monotonic()
        while True:
            self._rung.clear()
            # Whoever stops us now must know what was claimed, to hand it back.
            if not await to_the_end(self._take_turns(group)):
                await self._rung_in_time()
            if monotonic() - compared >= self._policy.poll_interval:
                await self._compare(group)
                compared = monotonic()

    async def _take_turns(self, group: asyncio.TaskGroup) -> bool:
        """Whether there may be more: as many were taken as were wanted."""
        wanted = 0 if self._draining else min(_CLAIM, self._policy.concurrent_turns - len(self._runs))
        claimed = await self._claim(wanted)
        for turn in claimed:
            self._start(group, turn)
        return len(claimed) == wanted > 0

    def _start(self, group: asyncio.TaskGroup, turn: UUID) -> None:
        """A turn may come back to where it still runs: this replica was taken for dead in between."""
        if before := self._runs.get(turn):
            _interrupt(before, "lost")
        run = self._runs[turn] = Run()
        run.task = group.create_task(self._run(turn, run), name=f"turn {turn}")

    async def _claim(self, wanted: int) -> Sequence[UUID]:
        try:
            if wanted > 0:
                return await self._queue.claim(wanted)
            if self._pass_on:  # never for what was heard: full replicas would ring each other without end
                self._pass_on = False
                await self._ring_all(QUEUED)
        except StorageUnavailable as error:
            log.error("queue.unavailable", error=str(error))
        return ()

    async def _rung_in_time(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._policy.poll_interval):
                await self._rung.wait()

    async def _compare(self, group: asyncio.TaskGroup) -> None:
        """A ring may be lost, and so may the answer to a claim, and the claim itself; the rows stay."""
        before = dict(self._runs)
        try:
            mine = await self._queue.mine()
        except StorageUnavailable:
            return
        for turn in before.keys() - mine.keys():
            _interrupt(before[turn], "lost")
        for turn, cancelled in mine.items():
            run = self._runs.get(turn)
            if run is None and not self._draining:
                self._start(group, turn)
            elif run is not None and cancelled:
                _interrupt(run, "cancel")

    # --- one turn ----------------------------------------------------------------------------------------------------

    async def _run(self, turn: UUID, run: Run) -> None:
        structlog.contextvars.bind_contextvars(turn=str(turn))
        TURNS_RUNNING.inc()
        try:
            await self._run_claimed(turn, run)
        except ClaimLost as error:
            log.warning("claim.lost", reason=str(error))
        except Exception:
            log.exception("turn.abandoned")
        finally:
            TURNS_RUNNING.dec()
            if len(self._runs) >= self._policy.concurrent_turns:
                self._rung.set()  # turns may wait for this place
            if self._runs.get(turn) is run:
                del self._runs[turn]
            if run.updated.is_set() or run.reason == "cancel":
                self._rung.set()  # it may have let go of the turn before it heard

    async def _run_claimed(self, identity: UUID, run: Run) -> None:
        owner, path = await retry_while_unavailable(lambda: self._turns.claimed(identity, self._queue.replica))
        turn = path[-1]
        structlog.contextvars.bind_contextvars(chat=str(turn.chat_id), attempt=turn.attempt)
        view = LiveView(turn)
        started = await retry_while_unavailable(lambda: self._recall(view))
        with self._directory.host(view, owner):
            recorder = Recorder(Records(self._database, self._queue.replica, turn.id, turn.attempt), view)
            calls = Calls(recorder, self._toolset, owner, self._observers, Files(self._uploads, owner), started)
            executor = Executor(
                recorder,
                path[:-1],
                self._provider_for,
                calls,
                self._observers,
                owner,
                self._policy.model,
                self._clock,
                run.updated,
                self,
            )
            assert turn.request is not None
            log.info("turn.claimed", model=turn.request.model, recoveries=turn.recoveries)
            await self._carry_out(run, executor, recorder)
            if recorder.leaves_work:
                self.wake()
            if view.turn.ended:
                account_for(view.turn, calls.first_started)
        if view.turn.ended:
            await to_the_end(self._observers.turn_ended(TurnEnded(owner, view.turn)))

    async def refreshed(self, turn: Turn) -> Turn:
        return await retry_while_unavailable(lambda: self._turns.refreshed(turn))

    async def uploads(self, ids: Collection[UUID]) -> Mapping[UUID, bytes]:
        return await retry_while_unavailable(lambda: self._uploads.contents(ids))

    async def _recall(self, view: LiveView) -> frozenset[Key]:
        """What earlier runs left besides rows of the turn: open text in the journal, calls without an outcome."""
        if not view.turn.rounds:
            return frozenset()
        view.adopt(view.turn, await self._journal.open_block(view.turn))
        return await self._turns.started_calls(view.turn.id)

    async def _carry_out(self, run: Run, executor: Executor, recorder: Recorder) -> None:
        if recorder.turn.cancel_requested:
            run.reason = "cancel"
        try:
            if run.reason is None:
                run.started = True
                await executor.run()
        except asyncio.CancelledError:
            if run.reason is None:
                raise
            # The cancellation has done its work; what follows must not be cut short by it.
            run.task.uncancel()
        except ClaimLost:
            raise
        except Exception:
            log.exception("turn.failed")
            await to_the_end(_stop(executor, "error", _INTERNAL))
        if run.reason is not None and recorder.holds:
            await to_the_end(_after(run.reason, executor, recorder))


async def _after(reason: Reason, executor: Executor, recorder: Recorder) -> None:
    match reason:
        case "cancel":
            await _stop(executor, "cancelled")
        case "release":
            await recorder.release()
        case "lost":
            raise ClaimLost("this replica has claimed the turn anew")
        case _:
            assert_never(reason)


async def _stop(executor: Executor, status: Status, error: TurnError | None = None) -> None:
    try:
        await executor.stop(status, status, error)
    except ClaimLost:
        raise
    except Exception:  # what was being written cannot be stored
        log.exception("turn.not_tidied")
        await executor.stop(status, status, error, keep=False)


def _interrupt(run: Run, reason: Reason) -> None:
    if run.reason is None:
        run.reason = reason
        if run.started:
            run.task.cancel()
