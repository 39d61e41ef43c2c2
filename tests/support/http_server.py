"""The real application behind a real socket, in the process of the tests, which therefore control its models."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnstream.api.http.connection import connections
from turnstream.api.identity.authenticator import Authenticate
from turnstream.api.services import Services, Storage
from turnstream.config import Settings
from turnstream.domain.identity import OF_A_PERSON, Identity, Scope
from turnstream.domain.plans import Plan
from turnstream.extension import Extension
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.main import create_app
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.row_security import embedded_api_url
from turnstream.tools.toolset import Toolset

MODEL = "plain"


@dataclass(frozen=True)
class Scripts:
    """Models with scripted replies. The model `plain` answers every call with `Hello.`"""

    offers: list[ProviderModels] = field(
        default_factory=lambda: [ProviderModels(ScriptedProvider(lambda _: message_of(text("Hel", "lo."))), [MODEL])]
    )

    def model(self, *replies: Reply) -> str:
        """Adds a model whose n-th call gets the n-th reply, and returns its id."""
        return self.provider(*replies)[0]

    def provider(self, *replies: Reply) -> tuple[str, ScriptedProvider]:
        """Adds a scripted model, and returns its id and its provider."""
        name, provider = f"script-{uuid4().hex}", ScriptedProvider(replies)
        self.offers.append(ProviderModels(provider, [name]))
        return name, provider


def pausing(pause: Pause, *pieces: str) -> Reply:
    """Returns a text whose first piece is sent before the pause."""
    message = list(message_of(text(*pieces)))
    return [*message[:3], pause, *message[3:]]


class GrowingModels(Models):
    """The models of a server. A model is known as soon as a test has added it."""

    def _find(self, name: str) -> tuple[ProviderModels, Model] | None:
        return Models(self.providers)._find(name)


@dataclass(frozen=True)
class Server:
    url: str
    database_url: str
    app: Starlette
    scripts: Scripts
    uvicorn: uvicorn.Server

    @property
    def stalled_connections(self) -> int:
        """The number of connections with full buffers, whose clients do not read."""
        connections = self.uvicorn.server_state.connections
        return sum(each.flow.write_paused for each in connections if isinstance(each, HttpToolsProtocol))

    @property
    def services(self) -> Services:
        """The services of the application, with a storage that sees the rows of all owners."""
        services: Services = self.app.state.services
        everything = services.storage.database
        return replace(services, storage=Storage.of(everything, everything, services.storage.search))

    async def token(self, owner: str, *scopes: Scope, **more: Any) -> str:
        """Creates a token of the owner, with the scopes of a person unless the test names scopes."""
        identity = Identity(owner, frozenset(scopes) or OF_A_PERSON, **more)
        return await Tokens(self.services.storage.database).create(f"{owner} {uuid4()}", identity)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    database_url: str,
    toolset: Toolset | None = None,
    offers: Sequence[ProviderModels] = (),
    authenticate: Authenticate | None = None,
    plan_of: Callable[[str], Plan | str | None] | None = None,
    extensions: Sequence[Extension] | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    scripts = Scripts()
    scripts.offers.extend(offers)
    given: dict[str, Any] = {
        "database_url": database_url,
        "api_database_url": await embedded_api_url(database_url),
        "model": MODEL,
        "grace_period": 0,
        "lease": 60,
        "max_reply_chars": 20_000_000,
        **settings,
    }
    models = GrowingModels(scripts.offers)
    app = create_app(
        Settings(_env_file=None, **given),
        models,
        toolset,
        authenticate=authenticate,
        plan_of=plan_of,
        extensions=extensions,
    )
    with _listener(given.get("port", 0)) as listener:
        http = cast("type[asyncio.Protocol]", connections(heartbeat=15))
        config = uvicorn.Config(
            app, http=http, log_config=None, lifespan="on", server_header=False, timeout_graceful_shutdown=1
        )
        server = _Uvicorn(config)
        task = asyncio.create_task(server.serve([listener]))
        await _first(server.up, task)
        try:
            yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", database_url, app, scripts, server)
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def answering(app: Starlette) -> AsyncIterator[str]:
    """Runs another server of a test, and yields its URL."""
    with _listener() as listener:
        server = _Uvicorn(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve([listener]))
        await _first(server.up, task)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def _listener(port: int = 0) -> socket.socket:
    """Returns a socket that declares TCP. Otherwise asyncio leaves Nagle's algorithm on, and each answer waits 40 ms
    for an acknowledgement.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", port))
    return listener


async def _first(up: asyncio.Event, task: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(up.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        await task
