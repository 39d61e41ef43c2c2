"""`turnstream serve`."""

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
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            click.echo(_welcome(self._settings, self._port()), err=True)

    def _port(self) -> int:
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


@click.command()
def serve() -> None:
    """Run the server: migrate the database, then listen."""
    settings = read_settings()
    configure_logging(settings.log_level)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http="httptools",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_level="warning",
        backlog=4096,
        timeout_graceful_shutdown=max(1, round(settings.grace_period)),
        server_header=False,
    )
    server = Server(config, settings)
    server.run()
    if not server.started:
        raise ConfigError("the server did not start; the lines above say why")


def _welcome(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    database = "DATABASE_URL" if settings.database_url else f"embedded in {settings.data_dir}"
    return WELCOME.format(url=f"http://{host}:{port}", model=settings.default_model, database=database)
