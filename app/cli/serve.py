"""`turnstream serve`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import click
import uvicorn

from app.config import Settings, read_settings
from app.domain.errors import ConfigError
from app.main import create_app
from app.telemetry import configure_logging

WELCOME = """
turnstream listens on {url}   (model: {model}, database: {database})

Try it, in another terminal:

  curl -N --json '{{"blocks":[{{"type":"text","text":"What files are in my project?"}}]}}' \\
       -H 'Accept: text/event-stream' {url}/api/turns

  curl {url}/api/chats

or talk to it: turnstream chat
"""


class Server(uvicorn.Server):
    """Says where it listens once it does. Told to stop, it drains first: readiness fails, running turns may finish.
    Told again, it stops at once.
    """

    def __init__(self, config: uvicorn.Config, settings: Settings, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain_turns = drain
        self._settings = settings
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            click.echo(_welcome(self._settings, self.servers[0].sockets[0].getsockname()[1]), err=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started and self._draining is None:
            self._loop.call_soon_threadsafe(self._drain, sig, frame)
        else:
            super().handle_exit(sig, frame)

    def _drain(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain_turns())
            self._draining.add_done_callback(lambda _task: super(Server, self).handle_exit(sig, frame))


@click.command()
def serve() -> None:
    """Run the server: migrate the database, then listen."""
    settings = read_settings()
    configure_logging(settings.log_level)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="httptools",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_level="warning",
        backlog=4096,
        timeout_graceful_shutdown=5,
        server_header=False,
    )

    async def drain() -> None:
        await app.state.services.drain()

    server = Server(config, settings, drain)
    server.run()
    if not server.started:
        raise ConfigError("the server did not start; the lines above say why")


def _welcome(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    database = "DATABASE_URL" if settings.database_url else f"embedded in {settings.data_dir}"
    return WELCOME.format(url=f"http://{host}:{port}", model=settings.default_model, database=database)
