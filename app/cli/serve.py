"""`turnstream serve`."""

import asyncio
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import click
import uvicorn
import uvloop

from app.api.streams.turn import end_streams
from app.config import Settings, read_settings
from app.domain.errors import ConfigError
from app.main import application, running
from app.setup.models import default_model
from app.telemetry import configure_logging

WELCOME = """
turnstream listens on {url}   (model: {model}, database: {database})

Open it in a browser; or in another terminal, ask and watch the answer grow

  curl -N --json '{{"blocks":[{{"type":"text","text":"What files are in my project?"}}]}}' \\
       -H 'Accept: text/event-stream' {url}/api/turns

cut the connection, and come back for the rest with the chat and turn of turn_start and the id of the last event

  curl -N -H 'Last-Event-ID: ID' {url}/api/chats/CHAT/turns/TURN/stream

or talk to it: {command} chat
"""

_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104, only compared with


class Server(uvicorn.Server):
    """Says where it listens once it does. Told to stop, it drains first: readiness fails, running turns may finish.
    Told again, it stops at once.
    """

    def __init__(self, config: uvicorn.Config, settings: Settings, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._settings = settings
        self._drain_turns = drain
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            click.echo(_welcome(self._settings, self.servers[0].sockets[0].getsockname()[1]), err=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002, as the base has it
        """The signal is not raised again, as the base would: what is open must be closed after it."""
        self._loop.call_soon_threadsafe(self._told_to_stop)

    def _told_to_stop(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain_turns())
            self._draining.add_done_callback(lambda _task: self._stop())
        else:
            self.force_exit = True
            self._stop()

    def _stop(self) -> None:
        end_streams()
        self.should_exit = True


@click.command()
def serve() -> None:
    """Run the server: migrate the database, then listen."""
    settings = read_settings()
    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    with _bound(settings) as own_socket:
        async with running(settings) as services:
            config = uvicorn.Config(
                application(services),
                http="httptools",
                lifespan="off",
                access_log=False,
                log_config=None,
                backlog=4096,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
            await Server(config, settings, services.drain).serve([own_socket])


def _bound(settings: Settings) -> socket.socket:
    """The address, before anything else: whoever has it may take over what a process here has left behind."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    own_socket = socket.socket(family)
    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own_socket.bind((settings.host, settings.port))
    except OSError as error:
        own_socket.close()
        where = f"TURNSTREAM_HOST {settings.host}, TURNSTREAM_PORT {settings.port}"
        raise ConfigError(f"{where}: cannot listen there: {error.strerror or error}") from None
    return own_socket


def _welcome(settings: Settings, port: int) -> str:
    host = "127.0.0.1" if settings.host in _EVERYWHERE else settings.host
    return WELCOME.format(
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        model=default_model(settings),
        database="DATABASE_URL" if settings.database_url else f"embedded in {settings.data_dir}",
        command=_command(),
    )


def _command() -> str:
    """How this program was called, shortly where that can be."""
    called, here = Path(sys.argv[0]).absolute(), Path.cwd()
    return shlex.quote(str(called.relative_to(here) if called.is_relative_to(here) else called))
