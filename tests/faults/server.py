"""`python -m tests.faults.server` forks a real server, with everything already imported, for each line of standard
input. A line is a JSON object: the environment of the server.

FAULTS_DIE_AT names its kill point. FAULTS_SEEN names a file for the points that it has reached. FAULTS_EFFECTS is the
port of the service that counts the effects of its tools. FAULTS_LOG names a file for its log. With FAULTS_PACE, its
model and its tools take up to so many seconds for each step. Without it, every tick of the journal is a checkpoint, and
the model sends the next batch when the rows, the journal and all readers have the previous batch.
FAULTS_NOTIFICATIONS_LOST is the share of notifications that the server loses. With FAULTS_ROUNDS_LATE, the rows of
rounds are written with their first blocks. With FAULTS_BACKGROUND, tools with effects run in the background, and its
value determines more: with "detached" they leave a handle, with "asks" a handle and a question. With "asks while it
runs" they ask before their effect, and with "reports" their turn does not wait for them.
"""

import asyncio
import gc
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog
import uvicorn
from starlette.applications import Starlette

from tests.faults.points import Points
from tests.faults.script import MODEL, reply_to, tools
from tests.faults.wrong_clock import take_clock_of_environment
from tests.support.legal.anthropic import message_problems
from tests.support.model_requests import rendered
from turnstream import main
from turnstream.config import Settings
from turnstream.domain import membership
from turnstream.domain.errors import PermanentError
from turnstream.domain.events import BlockStart
from turnstream.domain.turns import ToolSpec
from turnstream.engine.upkeep import journal_writer
from turnstream.engine.upkeep.round_writer import RoundWriter
from turnstream.engine.worker import Worker
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.provider import ModelRequest, Part
from turnstream.storage.database import Statement
from turnstream.storage.runs.journal import CHECKPOINT
from turnstream.storage.runs.queue import Queue
from turnstream.stream.live import LiveView
from turnstream.telemetry import configure_logging
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Detached, Outcome, PersonQuestion, Tool, ToolContext
from turnstream.tools.toolset import Toolset

Position = tuple[int, int, int]
_QUESTION = PersonQuestion("Who?", 600, '{"type": "object", "properties": {"name": {"type": "string"}}}')


class Delivery:
    """Waits until everything that was sent has arrived: at the readers of all turns, in the journal, and in the rows of
    rounds unless the rounds are `late`.
    """

    def __init__(self, late: bool) -> None:
        self._late = late
        self.app: Starlette | None = None
        self._journaled: dict[UUID, Position] = {}

    def written(self, statement: Statement, values: dict[str, Any]) -> None:
        if statement is CHECKPOINT:
            for piece in json.loads(values["pieces"]):
                length = piece["start"] + len(piece["text"])
                self._journaled[UUID(piece["turn"])] = (piece["attempt"], piece["index"], length)

    async def come(self) -> None:
        while not all(map(self._is_delivered, self._views())):  # noqa: ASYNC110, there is no event for this
            await asyncio.sleep(0.001)

    def _views(self) -> Sequence[LiveView | None]:
        services = getattr(self.app and self.app.state, "services", None)
        return services.live.directory.here() if services else [None]

    def _is_delivered(self, view: LiveView | None) -> bool:
        if view is None or (view.begun and not self._late):
            return False
        return view.wakeup.has_waiters and self._is_journaled(view)

    def _is_journaled(self, view: LiveView) -> bool:
        start = view.marks[-1]
        expected = isinstance(start, BlockStart) and (view.attempt, start.index, view.open_length)
        return not expected or self._journaled.get(view.turn.id) == expected


@dataclass(frozen=True)
class ScriptedModel:
    """Sends each batch when the previous batch has arrived everywhere, or after a random time. Refuses illegal
    requests.
    """

    points: Points
    quiet: Delivery
    pace: float | None
    name = "faulty"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        if problems := message_problems(rendered(request.messages)):
            raise PermanentError("illegal_request", "; ".join(problems))
        for batch in reply_to(request):
            await (self.quiet.come() if self.pace is None else pause(self.pace))
            self.points.reach("event")
            yield batch
        self.points.reach("end of events")


@dataclass(frozen=True)
class WatchedTool:
    tool: Tool
    points: Points
    pace: float | None
    background: str | None

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    @property
    def policy(self) -> Policy:
        in_background = self.background is not None and not self.spec.read_only
        reports = in_background and self.background == "reports"
        return replace(self.tool.policy, background=in_background, reports=reports)

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        if context.handle is not None:
            self.points.reach(f"poll of {self.spec.name}")
            if self.background == "asks" and context.answer is None:
                return Outcome("nobody has answered", is_error=True)
            return Outcome(context.handle["outcome"])
        self.points.reach(f"start of {self.spec.name}")
        await pause(self.pace)
        if self.background == "asks while it runs" and context.ask is not None and self.policy.background:
            if await context.ask(_QUESTION) is None:
                return Outcome("nobody has answered", is_error=True)
            self.points.reach(f"answer of {self.spec.name}")
        outcome = await self.tool(context, input_json)
        await pause(self.pace)
        self.points.reach(f"end of {self.spec.name}")
        if self.background == "detached" and self.policy.background:
            context.detach(Detached({"outcome": outcome.text}, 0.0))
        if self.background == "asks" and self.policy.background:
            context.detach(Detached({"outcome": outcome.text}, question=_QUESTION))
        return outcome


async def pause(pace: float | None) -> None:
    if pace is not None:
        await asyncio.sleep(random.uniform(0, pace))


def lose_notifications(share: float) -> None:
    """Drops a share of the notifications that this process sends or receives."""
    notify, receive = Queue.notify, Worker.receive

    async def sometimes_notify(queue: Queue, payload: str) -> None:
        if random.random() >= share:
            await notify(queue, payload)

    def sometimes_receive(worker: Worker, payload: str) -> None:
        if random.random() >= share:
            receive(worker, payload)

    Queue.notify, Worker.receive = sometimes_notify, sometimes_receive  # type: ignore[method-assign, assignment]


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            os.write(1, f"ready {os.getpid()}\n".encode())


def serve(environment: dict[str, str]) -> None:
    """Runs a server like `turnstream serve`, with kill points in its database, its model and its tools."""
    os.environ.update(environment)
    take_clock_of_environment()
    membership.LOOK = float(os.environ.get("FAULTS_MONITOR_INTERVAL", membership.LOOK))
    log = os.open(environment["FAULTS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    configure_logging("info")
    structlog.contextvars.bind_contextvars(pid=os.getpid())
    seen = os.open(environment.get("FAULTS_SEEN", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    points = Points(environment.get("FAULTS_DIE_AT"), lambda point: void(os.write(seen, f"{point}\n".encode())))
    if late := "FAULTS_ROUNDS_LATE" in environment:
        RoundWriter.flush = _leave_to_blocks  # type: ignore[method-assign, assignment]
    quiet = Delivery(late)
    points.watch_commits(quiet.written)
    lose_notifications(float(environment.get("FAULTS_NOTIFICATIONS_LOST", "0")))
    pace = float(environment["FAULTS_PACE"]) if "FAULTS_PACE" in environment else None
    if pace is None:
        journal_writer.CHECKPOINT = 0.0
    background = environment.get("FAULTS_BACKGROUND")
    if background == "reports":
        points.watch_reports()
    watched = [WatchedTool(tool, points, pace, background) for tool in tools(int(environment["FAULTS_EFFECTS"]))]
    models = Models([ProviderModels(ScriptedModel(points, quiet, pace), [MODEL])])
    settings = Settings(_env_file=None)
    app = quiet.app = main.create_app(settings, models, Toolset(watched, 64, 100_000))
    Server(_served(app, settings)).run()


def _served(app: Starlette, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        port=settings.port,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
    )


def void(_: object) -> None:
    pass


async def _leave_to_blocks(_writer: RoundWriter) -> None:
    """Replaces the ticks of the round writer, as if a tick took longer than any reply."""


async def _is_migrated(_url: str) -> None:
    """Replaces the migration, because the database is a copy of a migrated database."""


def fork_on_demand() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    main.upgrade_in_thread = _is_migrated  # type: ignore[attr-defined, assignment]
    settings = Settings(_env_file=None)
    _served(main.create_app(settings), settings).load()  # forks share these imports and compiled code
    gc.freeze()
    for line in sys.stdin:
        if os.fork():
            continue
        os.write(1, f"forked {os.getpid()}\n".encode())  # written here: a slow parent would write it after `ready`
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        random.seed()
        try:
            serve(json.loads(line))
        finally:
            os._exit(0)


if __name__ == "__main__":
    fork_on_demand()
