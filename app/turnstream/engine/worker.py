"""The worker of a replica: claims queued turns, runs a task for each, and returns them to the queue at a shutdown."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

import structlog

from turnstream.domain.activity import Activity
from turnstream.domain.errors import ClaimLost, StorageError
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Turn
from turnstream.engine.call_policies import CallPolicy
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.hooks import HookRunner, Hooks
from turnstream.engine.model_route import ModelAccess, ModelBreakers, ModelPolicy
from turnstream.engine.recorder import to_the_end
from turnstream.engine.text_checks import NO_CHECKS, TextChecks
from turnstream.engine.turn_run import RunServices, TurnRun
from turnstream.engine.warm_paths import WarmPaths
from turnstream.kit.backoff import backoff
from turnstream.kit.signals import Signals
from turnstream.llm.provider import Provider
from turnstream.storage.database import FINAL_WRITE_TIMEOUT, OF_REQUEST, OWNER, Database, retry_while_unavailable
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.runs.queue import CANCEL, DRAIN, QUEUED, SUSPICIOUS, UPDATED, Claim, Queue
from turnstream.stream.directory import Directory
from turnstream.telemetry import TURNS_RUNNING
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

# Most turns in one claim, so that a burst is divided between replicas and between iterations of the event loop.
_CLAIM = 50
_ANY_NUMBER = 2**31 - 1

# Seconds for which nothing else is claimed after a claim of suspects. They double after each further death, up to the
# longest. Most turns that kill their process do so at once, because they repeat the same call.
_APART = 3.0
_LONGEST_APART = 60.0
# Longest pause in seconds before a turn whose runs fail is run again.
_LONGEST_PAUSE = 300.0


class FailedRuns:
    """Turns whose last runs ended with an unexpected exception, or with a write that Postgres refuses. Each run may
    call a model, so such a turn runs again only after `pause` seconds, and each failure doubles the pause. All times
    are seconds of one clock.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        # The number of failed runs in a row, and the earliest time of the next run.
        self._of: dict[UUID, tuple[int, float]] = {}

    def note(self, turn: UUID, now: float) -> float:
        """Counts a failed run. Returns the seconds until the turn may run again."""
        before, _ = self._of.get(turn, (0, 0.0))
        pause = backoff(before + 1, self._pause, _LONGEST_PAUSE)
        self._of[turn] = before + 1, now + pause
        return pause

    def may_run(self, turn: UUID, now: float) -> bool:
        _, begins = self._of.get(turn, (0, now))
        return begins <= now

    def turns(self) -> Set[UUID]:
        return self._of.keys()

    def keep(self, turns: Collection[UUID]) -> None:
        """Drops all turns except these: the others have ended, or run on other replicas."""
        self._of = {turn: failed for turn, failed in self._of.items() if turn in turns}


class Isolation:
    """Isolates suspects, which are turns that may kill the process, from other turns. After a claim of suspects, no
    other turn is claimed for some seconds, so that a death counts only for the suspects. For the same time afterwards,
    no suspect is claimed. An idle replica claims suspects at once. After each isolation without a death, the next claim
    may have twice as many suspects, because a fault with another cause makes many turns suspects. All times are seconds
    of one clock.
    """

    def __init__(self, now: float) -> None:
        self._suspects: Collection[UUID] = ()
        self._until = now
        self._next = now + _APART
        self._at_once = 1

    def room(self, now: float, *, is_idle: bool) -> int:
        """Returns the number of suspects that may be claimed now."""
        return self._at_once if is_idle or now >= self._next else 0

    def begin(self, suspects: Collection[UUID], deaths: int, now: float) -> float:
        """Begins an isolation of these suspects. Returns the seconds for which nothing else is claimed."""
        seconds = backoff(deaths - SUSPICIOUS + 1, _APART, _LONGEST_APART)
        self._suspects, self._until, self._next = suspects, now + seconds, now + 2 * seconds
        self._at_once *= 2
        return seconds

    def end(self) -> None:
        """Called when a claim found no suspect."""
        self._at_once = 1

    def holds(self, running: Collection[UUID], now: float) -> bool:
        """Whether suspects are isolated now, so that no other turn may start."""
        return now < self._until and any(turn in running for turn in self._suspects)

    def includes(self, turn: UUID) -> bool:
        return turn in self._suspects


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """`poll_interval` and `grace_period` are in seconds. `plans` limit an owner's running turns on all replicas. Paths
    of ended turns use up to `warm_bytes` of memory. Without `declines`, a turn runs even if its model or a tool is
    missing here.
    """

    concurrent_turns: int = 1000
    plans: Plans = field(default_factory=Plans)
    poll_interval: float = 1.0
    grace_period: float = 10.0
    warm_bytes: int = 64_000_000
    declines: bool = True
    model: ModelPolicy = field(default_factory=ModelPolicy)


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
        notify_owner: Callable[[str], None] = lambda _owner: None,
        checks: TextChecks = NO_CHECKS,
        call_policies: Sequence[CallPolicy] = (),
    ) -> None:
        self._queue = queue
        self._policy = policy
        models = ModelAccess(provider_for, policy.model, clock, ModelBreakers(policy.model))
        runner = HookRunner(hooks)
        self._services = RunServices(
            database=database,
            replica=queue.replica,
            directory=directory,
            toolset=toolset,
            models=models,
            hooks=runner,
            accounts=Accounts(database),
            plans=policy.plans,
            notify_owner=notify_owner,
            decline=self._decline,
            warm_paths=WarmPaths(policy.warm_bytes),
            checks=checks,
            call_policies=call_policies,
        )
        self._runs: dict[UUID, TurnRun] = {}
        self._woken = asyncio.Event()
        self._notify_when_full = False
        self._draining = False
        self._group: asyncio.TaskGroup | None = None
        self._reserved = 0  # turns that are being inserted and will start here
        self._not_run: Set[UUID] = frozenset()  # claimed turns without a run at the last comparison
        self._failed = FailedRuns(policy.poll_interval)
        self._isolation = Isolation(monotonic())

    async def _decline(self, turn: Turn) -> bool:
        return self._policy.declines and await retry_while_unavailable(lambda: self._queue.decline(turn))

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def _shares_slots(self) -> bool:
        """Whether turns may wait for other turns of their owner."""
        return self._policy.plans.vary or self._policy.plans.default.running_turns is not None

    def activity(self) -> Mapping[UUID, Activity]:
        """Returns the state of turns in this process: turns that run here, and readers of turns that run elsewhere."""
        found = {
            view.turn.id: Activity(readers=view.wakeup.waiters)
            for view in self._services.directory.mirrored()
            if view.wakeup.has_waiters
        }
        for turn, run in self._runs.items():
            if (activity := run.activity()) is not None:
                found[turn] = activity
        return found

    def ended(self, turn: UUID) -> Turn | None:
        """Returns a turn that ended here, as long as its path is in memory."""
        warm = self._services.warm_paths.find(turn)
        return None if warm is None else warm.turns[-1]

    # --- notifications -----------------------------------------------------------------------------------------------

    def follow(self, signals: Signals) -> None:
        signals.notified.act(self.receive)
        signals.missed.act(self.wake)
        signals.wake.act(self.wake)
        signals.drain.act(self._begin_drain)
        signals.release.act(self.release)
        signals.suspect.act(self._services.warm_paths.clear)

    def wake(self) -> None:
        """Called when there may be a turn to claim. If this replica is full, other replicas are notified."""
        self._notify_when_full = True
        self._woken.set()

    def receive(self, payload: str) -> None:
        """Handles a notification from another replica."""
        kind, _, id = payload.partition(" ")
        if kind == QUEUED:
            # Not `wake`: full replicas would forward the notification to each other without end.
            self._woken.set()
        elif kind == DRAIN and UUID(id) == self._queue.replica:
            self._begin_drain()
        elif kind in {CANCEL, UPDATED} and (run := self._runs.get(UUID(id))):
            if kind == CANCEL:
                run.stop("cancel")
            else:
                run.updated.set()

    async def cancel(self, turn: UUID) -> None:
        """Stops a turn whose row has a cancellation, whichever replica runs the turn."""
        if run := self._runs.get(turn):
            run.stop("cancel")
        else:
            self.wake()
            await self._notify_replicas(f"{CANCEL} {turn}")

    async def refresh(self, turn: UUID) -> None:
        """Makes a turn, on any replica, read the rows that a user has written. A waiting turn is claimed for this."""
        if run := self._runs.get(turn):
            run.updated.set()
        else:
            self.wake()
            await self._notify_replicas(f"{UPDATED} {turn}")

    async def _notify_replicas(self, payload: str) -> None:
        """Notifies all replicas. The notification may be lost, because all replicas also poll the rows."""
        with suppress(StorageError):
            await self._queue.notify(payload)

    def release(self, owners: Collection[str]) -> None:
        """Returns the running turns of these owners to the queue, as a shutdown does."""
        for run in self._runs.values():
            if run.owner in owners:
                run.stop("release")

    # --- shutdown ----------------------------------------------------------------------------------------------------

    def _begin_drain(self) -> None:
        """Drains by order of an operator. The process keeps running, so that its readers continue and no supervisor
        starts a new process, which would claim turns.
        """
        if self._group is not None and not self._draining:
            self._group.create_task(self.drain(), name="drain")

    async def drain(self) -> None:
        """Claims no more turns, waits for running turns up to the grace period, and returns the others to the queue
        without a recovery. A second call skips the grace period.
        """
        again, self._draining = self._draining, True
        tasks = [run.task for run in self._runs.values()]
        if tasks and not again:
            log.info("worker.draining", running=len(tasks), grace_period=self._policy.grace_period)
            await asyncio.wait(tasks, timeout=self._policy.grace_period)
        for run in self._runs.values():
            run.stop("release")
        # In an outage of Postgres, waits only briefly for the last writes: the next replica continues from the rows.
        timeout = FINAL_WRITE_TIMEOUT
        while tasks := [run.task for run in self._runs.values() if not run.task.done()]:
            _, stuck = await asyncio.wait(tasks, timeout=timeout)
            for task in stuck:  # perhaps repeatedly: `to_the_end` completes a write after the first cancellation
                task.cancel()
            timeout = 0.1
        if paused := self._failed.turns() - self._runs.keys():
            with suppress(StorageError):
                await self._queue.give_back(paused, every=True)
        await self._notify_replicas(QUEUED)

    # --- turns that start with their insert ---------------------------------------------------------------------

    @contextmanager
    def reserve_slot(self) -> Iterator[UUID | None]:
        """Yields the id of this replica if a turn that is inserted in the block may be claimed at once and passed to
        `begin`. Yields None if the turn must be queued, for example because other turns may wait for the few free
        slots.
        """
        free = self._policy.concurrent_turns - len(self._runs) - self._reserved
        isolates = self._isolation.holds(self._runs.keys(), monotonic())
        if self._group is None or self._draining or isolates or free <= _CLAIM:
            yield None
            return
        self._reserved += 1
        try:
            yield self._queue.replica
        finally:
            self._reserved -= 1

    def begin(self, owner: str, path: Sequence[Turn]) -> None:
        """Runs a turn that was claimed by its insert. `path` has the last turns of its path."""
        turn = path[-1].id
        if self._group is not None and turn not in self._runs:  # the comparison with the rows may have started it
            self._start(self._group, turn, (owner, path))
            if self._draining:
                self._runs[turn].stop("release")

    # --- claims ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claims and runs turns until it is cancelled, then drains."""
        compared = monotonic()
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    self._woken.clear()  # before the claim: a turn enqueued during the claim wakes the worker again
                    # The claim completes even if the worker is cancelled: a shutdown must return the claimed turns.
                    if not await to_the_end(self._claim(group)):
                        with suppress(TimeoutError):
                            async with asyncio.timeout(self._policy.poll_interval):
                                await self._woken.wait()
                    if monotonic() - compared >= self._policy.poll_interval:
                        await self._compare_with_rows(group)
                        compared = monotonic()
            finally:
                await self.drain()
                self._group = None

    async def _claim(self, group: asyncio.TaskGroup) -> bool:
        """Claims and starts turns. Returns whether the queue may have more turns: the claim filled all free slots."""
        free = self._policy.concurrent_turns - len(self._runs) - self._reserved
        now = monotonic()
        room = 0 if self._draining or self._isolation.holds(self._runs.keys(), now) else min(_CLAIM, free)
        # If all turns have room, the order of owners is irrelevant, and the claim need not count running turns.
        plans = self._policy.plans
        most = plans.default.running_turns or (_ANY_NUMBER if free <= _CLAIM or plans.vary else None)
        suspects = min(room, self._isolation.room(now, is_idle=not self._runs and not self._reserved))
        claim = Claim()
        try:
            if room > 0:
                claim = await self._queue.take(room, most, suspects=suspects)
            elif self._notify_when_full:
                self._notify_when_full = False
                await self._notify_replicas(QUEUED)
        except StorageError as error:
            log.error("queue.unavailable", error=str(error))
        for turn in claim.turns:
            self._start(group, turn)
            if self._draining:  # the drain began during the claim
                self._runs[turn].stop("release")
        if claim.deaths:
            seconds = self._isolation.begin(claim.turns, claim.deaths, monotonic())
            for pause in (seconds, 2 * seconds):  # wakes for other turns, then for the next suspects
                asyncio.get_running_loop().call_later(pause, self._woken.set)
            turns, beside = [str(turn) for turn in claim.turns], len(self._runs) - len(claim.turns)
            log.warning("turns.isolated", turns=turns, deaths=claim.deaths, seconds=seconds, beside=beside)
        elif suspects:
            self._isolation.end()
        return len(claim.turns) == room > 0

    async def _compare_with_rows(self, group: asyncio.TaskGroup) -> None:
        """Compares the runs with the claimed turns in the rows. Repairs the loss of a notification, of the answer to a
        claim, or of a claim. Repairs the loss of a run's end by a failover of Postgres.
        """
        before = dict(self._runs)  # a run that starts during the query is not in the result
        try:
            mine = await self._queue.claimed()
        except StorageError:
            return
        for turn in before.keys() - mine.keys():
            before[turn].stop("lost")
        for turn, run in self._runs.items():
            if mine.get(turn):
                run.stop("cancel")
        # Only turns that had no run at the last comparison either, because a turn is inserted before its run starts.
        before_last, self._not_run = self._not_run, mine.keys() - self._runs.keys()
        self._failed.keep(mine.keys())
        if unrun := self._not_run & before_last:
            with suppress(StorageError):
                unrun -= await self._queue.give_back(unrun, every=self._draining)
                # A run of a cancelled turn calls no model, and needs no pause.
                again = [turn for turn in unrun if mine[turn] or self._failed.may_run(turn, monotonic())]
                for turn in await self._queue.claim_again(again) if again else ():
                    self._start(group, turn)

    def _start(self, group: asyncio.TaskGroup, turn: UUID, loaded: tuple[str, Sequence[Turn]] | None = None) -> None:
        # This replica may still run the turn that it has just claimed again, if the lease expired in between.
        if before := self._runs.get(turn):
            before.stop("lost")
        run = self._runs[turn] = TurnRun(turn, self._services, loaded)
        run.task = group.create_task(self._supervise(run), name=f"turn {turn}")

    async def _supervise(self, run: TurnRun) -> None:
        OWNER.set("")  # a request may have started the run, and does not wait for it
        OF_REQUEST.set(False)
        structlog.contextvars.bind_contextvars(turn=str(run.turn))
        TURNS_RUNNING.inc()
        try:
            if await run.execute():
                self.wake()
            await run.call_hooks()  # after `wake`: hooks may take seconds, and the next turn must not wait
        except ClaimLost as error:
            log.warning("claim.lost", reason=str(error))
        except MemoryError:  # no turn of this process can continue: it exits, and other replicas take over
            raise
        except Exception:
            log.exception("turn.abandoned", again_after=self._failed.note(run.turn, monotonic()))
        finally:
            TURNS_RUNNING.dec()
            if (
                len(self._runs) >= self._policy.concurrent_turns
                or self._shares_slots
                or self._isolation.includes(run.turn)
            ):
                self._woken.set()  # turns may wait for this slot
            if self._runs.get(run.turn) is run:
                del self._runs[run.turn]
            if run.updated.is_set() or run.stop_cause == "cancel":
                self._woken.set()  # the notification may have come after the release of the turn
