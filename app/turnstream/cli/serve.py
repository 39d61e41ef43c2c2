"""The command `turnstream serve`."""

import asyncio
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any, cast

import click
import uvicorn
import uvloop

from turnstream.api.http.connection import KEEP_ALIVE, connections
from turnstream.cli.allocator import give_back_freed_memory
from turnstream.cli.notices import READY, STOPPING, notify_supervisor, send_signs_of_life
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import ServerProcess, model_choice, own_database, processes_of, read_settings, selected
from turnstream.main import application, running
from turnstream.telemetry import configure_logging, settle_garbage_collector, write_in_background

WELCOME = """
turnstream listens on {url}   (model: {model}, database: {database})

Open it in a browser. Or ask in another terminal, and watch the answer grow:

  curl -N --json '{{"blocks":[{{"type":"text","text":"What files are in my project?"}}]}}' \\
       -H 'Accept: text/event-stream' {url}/api/turns

Cut the connection. Get the rest with the chat and turn of turn_start and the id of the last event:

  curl -N -H 'Last-Event-ID: ID' {url}/api/chats/CHAT/turns/TURN/stream

Or talk to it: {command} chat --server {url}

Once it has tokens, each request needs one: -H 'Authorization: Bearer TOKEN'
"""

_ACCEPTED_AT_ONCE = 16  # connections
_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104, only compared with


class Server(uvicorn.Server):
    """Prints its address when it listens. The first signal drains it (running turns may end), the second stops it."""

    def __init__(
        self, config: uvicorn.Config, settings: Settings, drain: Callable[[], Awaitable[None]], is_alone: bool
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._is_alone = is_alone
        self._drain_turns = drain
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._is_alone:
                click.echo(_welcome(self._settings, self.servers[0].sockets[0].getsockname()[1]), err=True)
            notify_supervisor(READY)
            self._settling = asyncio.ensure_future(self._settle())

    async def _settle(self) -> None:
        """Completes the start after the server has begun to listen."""
        await model_choice(self._settings, selected(self._settings)).import_adapter()
        settle_garbage_collector()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002, of the base class
        """Does not raise the signal again after the shutdown, unlike the base class: `running` must still close."""
        self._loop.call_soon_threadsafe(self._obey_signal)

    def _obey_signal(self) -> None:
        if self._is_alone and self._draining is not None:
            self.force()
        else:
            self.start_drain()

    async def stop_after(self, failed: asyncio.Event) -> None:
        await failed.wait()
        self.start_drain()

    def start_drain(self) -> None:
        if self._draining is None:
            notify_supervisor(STOPPING)
            self._draining = asyncio.ensure_future(self._drain_turns())
            self._draining.add_done_callback(lambda _task: self._stop())

    def force(self) -> None:
        self.force_exit = True
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True


@click.command()
@click.option("--workers", type=click.IntRange(1), help="Processes on this port; as many as CPUs that they may use.")
@click.option("--process", hidden=True, help="The place of this process among them.")
def serve(workers: int | None, process: str | None) -> None:
    """Migrate the database and run the server."""
    write_in_background()
    settings = read_settings()
    configure_logging(settings.log_level)
    give_back_freed_memory()
    processes = processes_of(settings, selected(settings))
    if processes is None and (process or (workers or 1) > 1):
        raise ConfigError("`serve --workers` needs the extension workers: add workers to TURNSTREAM_EXTENSIONS.")
    count = 1 if processes is None else workers or processes.count
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if processes is not None and count > 1:
            with bound(settings, shared=True) as reserved:
                welcome = _welcome(settings, reserved.getsockname()[1])
                sys.exit(runner.run(processes.supervise(reserved, count, welcome)))
        runner.run(_serve(settings, processes.process(process) if processes and process else None))


async def _serve(settings: Settings, process: ServerProcess | None) -> None:
    signs = asyncio.create_task(send_signs_of_life())
    with bound(settings, shared=process is not None) as own_socket:
        app: Any = application(settings)  # before turns run, because its imports would block their loop
        async with running(settings, process=process) as services, AsyncExitStack() as stack:
            app.state.services = services
            sockets = [own_socket]
            if services.neighbours:
                app, listener = stack.enter_context(services.neighbours.listening(app))
                sockets.append(listener)
            config = uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", connections(settings.heartbeat)),
                lifespan="off",
                ws="none",  # otherwise uvicorn imports any installed websocket library
                access_log=False,
                log_config=None,
                backlog=4096,
                timeout_graceful_shutdown=5,
                timeout_keep_alive=KEEP_ALIVE,
                server_header=False,
                root_path=settings.root_path,
            )
            server = Server(config, settings, services.drain, process is None)
            if process is not None:
                process.obey(server.start_drain, server.force)
            failure = asyncio.create_task(server.stop_after(services.failed))
            await server.serve([each for listener in sockets for each in watched(listener)])
            failure.cancel()
    signs.cancel()
    if services.failed.is_set():
        sys.exit(1)  # status 0 would tell the supervisor that the exit was intended


def watched(listener: socket.socket) -> list[socket.socket]:
    """Returns the socket with duplicates: libuv accepts one connection of each per iteration, which load makes long."""
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_AT_ONCE - 1))]


def bound(settings: Settings, shared: bool = False) -> socket.socket:
    """Returns a socket at the address of the settings. It is bound first, because a server that cannot listen must
    claim no turns. A `shared` address serves several processes; the system distributes the connections.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    own_socket = socket.socket(family)
    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        own_socket.bind((settings.host, settings.port))
    except OSError as error:
        own_socket.close()
        address = f"TURNSTREAM_HOST {settings.host}, TURNSTREAM_PORT {settings.port}"
        raise ConfigError(
            f"the server cannot listen on {address}: {error.strerror or error}; choose another"
            " address, or stop the program that uses it"
        ) from None
    return own_socket


def _welcome(settings: Settings, port: int) -> str:
    host = "127.0.0.1" if settings.host in _ALL_ADDRESSES else settings.host
    called, here = Path(sys.argv[0]).absolute(), Path.cwd()
    return WELCOME.format(
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        model=model_choice(settings, selected(settings)).default(),
        database="DATABASE_URL" if settings.database_url else own_database(settings).name,
        command=shlex.quote(str(called.relative_to(here) if called.is_relative_to(here) else called)),
    )
