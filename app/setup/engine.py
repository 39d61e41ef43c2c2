"""The engine: workers, background tasks and live views of this process, started and stopped together."""

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from app.config import Settings
from app.engine.frame_clock import FrameClock
from app.engine.hooks import Hooks
from app.engine.upkeep.journal_writer import JournalWriter
from app.engine.upkeep.recovery import ReplicaMonitor
from app.engine.upkeep.upload_sweep import sweep_deleted_chats, sweep_uploads
from app.engine.upkeep.webhooks import Receiver, WebhookDeliveries, WebhookPolicy
from app.engine.worker import Worker
from app.kit.ids import new_id
from app.llm.models.catalog import Models
from app.setup.background import background
from app.setup.policies import worker_policy
from app.storage.actions import Actions
from app.storage.chat_changes import ChatUpdates
from app.storage.database import Database
from app.storage.owner_changes import OwnerChanges
from app.storage.runs.journal import Journal
from app.storage.runs.queue import Queue
from app.storage.runs.session import ReplicaSession
from app.storage.runs.snapshots import Snapshots
from app.storage.uploads import Uploads
from app.storage.webhooks import Webhooks
from app.stream.chat.wakeups import ChatWakeups
from app.stream.directory import Directory
from app.stream.feed import OwnerFeed
from app.stream.mirror import Mirror
from app.tools.toolset import Toolset

# Seconds between two checks for a lost notification of a chat.
_CHAT_POLL = 5.0
# How often the reader of a feed looks without a wake-up, in seconds.
_FEED_LOOK = 10.0


@dataclass(frozen=True, slots=True)
class Engine:
    worker: Worker
    directory: Directory
    chat_wakeups: ChatWakeups
    feed: OwnerFeed


@asynccontextmanager
async def started(
    settings: Settings,
    url: str,
    database: Database,
    models: Models,
    toolset: Toolset,
    hooks: Sequence[Hooks],
    receiver: Receiver | None,
) -> AsyncIterator[Engine]:
    """Runs the engine. At the end the worker stops first; then this replica leaves."""
    deliveries = [WebhookDeliveries(Webhooks(database), receiver, WebhookPolicy())] if receiver else []
    directory, clock, session_key = Directory(), FrameClock(), secrets.randbits(62)
    queue = Queue(database, new_id(), _address(settings), session_key)
    chat_wakeups = ChatWakeups(ChatUpdates(database), queue.notify, _CHAT_POLL)
    changes = OwnerChanges(database)
    feed = OwnerFeed(changes, queue.notify, _FEED_LOOK)
    policy = worker_policy(settings, models.fallbacks)
    all_hooks = [*deliveries, *hooks]
    worker = Worker(database, queue, directory, models.provider_for, toolset, policy, clock, all_hooks, feed.notify)
    journal = Journal(database)
    monitor = ReplicaMonitor(queue, journal, Actions(database), settings.lease, worker.wake)
    receivers = (worker.receive, chat_wakeups.broadcast.receive, feed.broadcast.receive)
    async with AsyncExitStack() as stack:
        await monitor.start()
        stack.push_async_callback(queue.leave)
        await stack.enter_async_context(
            background(
                clock.watch(),
                monitor.run(),
                JournalWriter(journal, directory, settings.journal_interval).run(),
                Mirror(Snapshots(database), directory, settings.journal_interval / 2).run(),
                ReplicaSession(url, session_key, _all(receivers), monitor.doubt).run(),
                chat_wakeups.broadcast.run(),
                chat_wakeups.watch(),
                feed.broadcast.run(),
                sweep_uploads(Uploads(database)),
                sweep_deleted_chats(changes),
                *(each.run() for each in deliveries),
            )
        )
        await stack.enter_async_context(background(worker.run()))
        yield Engine(worker, directory, chat_wakeups, feed)


def _address(settings: Settings) -> str:
    """The address of this replica. A replica that starts at the address of another one takes the place of that one."""
    return f"{socket.gethostname()}:{settings.port or f'process-{os.getpid()}'}"


def _all(receivers: Sequence[Callable[[str], None]]) -> Callable[[str], None]:
    def receive(payload: str) -> None:
        for receiver in receivers:
            receiver(payload)

    return receive
