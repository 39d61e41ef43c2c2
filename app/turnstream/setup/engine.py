"""The engine: workers, background tasks and live views of this process, started and stopped together."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from turnstream.config import Settings
from turnstream.domain.errors import StorageError
from turnstream.engine.frame_clock import FrameClock
from turnstream.engine.text_checks import NO_CHECKS, TextChecks
from turnstream.engine.upkeep.activity_reports import ActivityReports
from turnstream.engine.upkeep.journal_writer import JournalWriter
from turnstream.engine.upkeep.recovery import ReplicaMonitor
from turnstream.engine.upkeep.refusals import REFUSALS_KEPT_DAYS, RefusedLogins
from turnstream.engine.upkeep.round_writer import RoundWriter
from turnstream.engine.upkeep.sweeps import HOURS, Sweep
from turnstream.engine.worker import Worker, WorkerPolicy
from turnstream.extension import Context, ServerProcess, Task, Work
from turnstream.kit.ids import new_id
from turnstream.kit.signals import Signals
from turnstream.setup.configuration import digests_of
from turnstream.setup.parts import Parts
from turnstream.setup.policies import worker_policy
from turnstream.storage.chats.actions import Actions
from turnstream.storage.database import Database
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.audit import AuditTrail
from turnstream.storage.retention import Sweeps, old_deletions, old_keys, unused_tool_sets
from turnstream.storage.runs.journal import Journal, OpenTexts
from turnstream.storage.runs.queue import Queue, Renewals
from turnstream.storage.runs.session import ReplicaSession
from turnstream.storage.runs.snapshots import Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.mirror import Mirror

log = structlog.get_logger(__name__)

# Days for which an idempotency key identifies a repeated request.
_KEYS_KEPT = 30
# Seconds before a background task restarts after a failure of Postgres.
_RESTART = 1.0


@dataclass(frozen=True, slots=True)
class Engine:
    """`failed` is set when a part has failed permanently. `works` has the work of each extension, by its name."""

    worker: Worker
    directory: Directory
    signals: Signals
    refusals: RefusedLogins
    failed: asyncio.Event
    replica: UUID
    renewals: Renewals
    works: Mapping[str, Work]
    checks: TextChecks


@asynccontextmanager
async def started(parts: Parts, url: str, process: ServerProcess | None = None) -> AsyncIterator[Engine]:
    """Runs the engine. At the end, the worker stops first, then this replica deregisters. Its session uses `url`."""

    async def notify_peers(payload: str) -> None:
        await monitor.notify_peers(payload)  # `monitor` is created after the works

    settings, database = parts.settings, parts.database
    session_key, failed = secrets.randbits(62), asyncio.Event()
    signals, directory, clock = Signals(), Directory(), FrameClock(settings.frames)
    policy = worker_policy(settings, parts.models, parts.plans)
    replica = new_id()
    works = _works(parts, policy, signals, replica, notify_peers)
    guards = [guard for work in works.values() for guard in work.guards]
    checks = guards[0].joined(guards, parts.plans) if guards else NO_CHECKS
    kinds = {kind for work in works.values() for kind in work.webhooks}
    address, digests = _address(settings, process), digests_of(parts)
    active = [*works, *(database.codec.forms if database.codec else ())]
    queue = Queue(database, replica, address, session_key, kinds, digests, active, parts.master_keys)
    monitor = ReplicaMonitor(queue, Actions(database), settings.lease, signals, parts.renewal_interval)
    refusals, provider_for = RefusedLogins(AuditTrail(database)), parts.models.provider_for
    hooks = [*(hook for work in works.values() for hook in work.hooks), *parts.hooks]
    worker = Worker(
        database,
        queue,
        directory,
        provider_for,
        parts.toolset,
        policy,
        clock,
        hooks,
        signals.owner_changed.send,
        checks,
        [each for work in works.values() for each in work.call_policies],
    )
    runners = [each(checks) for work in works.values() for each in work.runners]
    worker.follow(signals)
    async with AsyncExitStack() as stack:
        await monitor.start()
        stack.push_async_callback(queue.leave)
        upkeep: list[Task] = [
            clock.watch,
            monitor.run,
            RoundWriter(database, directory, settings.journal_interval).run,
            JournalWriter(Journal(database, queue.replica), directory, settings.journal_interval).run,
            Mirror(Snapshots(database), directory, settings.journal_interval / 2).run,
            ReplicaSession(url, session_key, signals.notified.send, monitor.disconnected, monitor.connected).run,
            refusals.run,
            *_upkeep_of_rows(settings, database, works.values()),
        ]
        await stack.enter_async_context(background(failed, *upkeep))
        reports = ActivityReports(worker.activity, database, queue.replica)
        await stack.enter_async_context(background(failed, worker.run, *runners, reports.run))
        yield Engine(worker, directory, signals, refusals, failed, queue.replica, queue.renewals, works, checks)


def _works(
    parts: Parts, policy: WorkerPolicy, signals: Signals, replica: UUID, notify_peers: Callable[[str], Awaitable[None]]
) -> Mapping[str, Work]:
    """Returns the background work of each extension, by the extension's name."""
    links = [extension.call_links(parts.settings, parts.database) for extension in parts.extensions]
    context = Context(
        settings=parts.settings,
        database=parts.database,
        extensions=parts.extensions,
        models=parts.models,
        plans=parts.plans,
        toolset=parts.toolset,
        model_policy=policy.model,
        replica=replica,
        signals=signals,
        poll_interval=policy.poll_interval,
        grace_period=policy.grace_period,
        notify_peers=notify_peers,
        call_links=next(filter(None, links), None),
    )
    return {extension.name: extension.work(context) for extension in parts.extensions}


def _address(settings: Settings, process: ServerProcess | None) -> str:
    """A replica that starts at the address of a dead replica replaces it. Live replicas must not share an address."""
    address = f"{socket.gethostname()}:{settings.port or f'process-{os.getpid()}'}"
    return address if process is None else f"{address}/{process.number}"


def _upkeep_of_rows(settings: Settings, database: Database, works: Collection[Work]) -> Sequence[Task]:
    sweeps = [*sweeps_of(settings, database), *(each for work in works for each in work.sweeps)]
    return [*(partial(each.run, Sweeps(database)) for each in sweeps), *(task for work in works for task in work.tasks)]


def sweeps_of(settings: Settings, database: Database) -> Sequence[Sweep]:
    """Returns the sweeps of the core, each of which removes old or unused rows at its interval."""
    trail = AuditTrail(database)
    keys = partial(old_keys, database, _KEYS_KEPT)
    return [
        Sweep("deleted chats", 6 * HOURS, partial(old_deletions, database)),
        Sweep("tool sets", 6 * HOURS, partial(unused_tool_sets, database)),
        Sweep("reservations", HOURS / 6, Accounts(database).sweep),
        Sweep("open text", HOURS / 6, OpenTexts(database).sweep),
        Sweep("audit", 6 * HOURS, partial(trail.sweep, settings.retain_audit_days, REFUSALS_KEPT_DAYS)),
        Sweep("old idempotency keys", HOURS, keys),
    ]


@asynccontextmanager
async def background(failed: asyncio.Event, *work: Task) -> AsyncIterator[None]:
    """Runs each `work` as a task until the end of the block. A task is restarted after a failure of Postgres. If a task
    ends for another reason, `failed` is set: a server without background work only seems alive, and must be restarted.
    """

    def check(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("background.failed", exc_info=task.exception())
            failed.set()

    tasks = [asyncio.create_task(_keep_running(each)) for each in work]
    for task in tasks:
        task.add_done_callback(check)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_running(work: Task) -> None:
    """Restarts `work` after a StorageError: a replica must survive an outage of Postgres. Raises other exceptions."""
    while True:
        try:
            await work()
        except* StorageError as errors:
            log.error("background.restarted", error=str(errors.exceptions[0]), seconds=_RESTART)
            await asyncio.sleep(_RESTART)
        else:
            raise RuntimeError("a background task has ended")
