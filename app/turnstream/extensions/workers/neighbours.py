"""The other processes of one `turnstream serve --workers N`. Each process is a replica. Besides the common port, each
process listens on its own Unix socket for requests of the other processes.
"""

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from uuid import UUID

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstream.api.identity.authenticator import URL_PARAMETER
from turnstream.api.neighbours import MARK

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_PATIENCE = 2.0  # seconds for an answer that is not a stream
# Seconds to wait for the head of a forwarded answer: without the answer, this process must read the turn's journal,
# which is more expensive than the wait.
_HEAD_PATIENCE = 10.0
# Headers that are not forwarded: they describe one connection, or a body that is not forwarded, not the request or
# answer itself.
_OF_THE_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"date"})
_OF_A_BODY = frozenset({b"content-length", b"expect"})

# The header of a forwarded request that contains the address of the client.
_CLIENT = b"x-turnstream-client"


class FromNeighbours:
    """Wraps the app of a process. Only this server can read the folder of the socket at `path`, so a request that
    arrives through the socket names the true client in its header.
    """

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app = app
        self._address = (str(path), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A missing client does not prove that the request comes from a neighbour, because a reset network connection
        # has no client either.
        if scope["type"] == "http" and scope["server"] == self._address:
            address = dict(scope["headers"]).get(_CLIENT, b"").decode("latin-1")
            port, _, host = address.partition(" ")
            scope = {**scope, MARK: True, "client": (host, int(port)) if host else None}
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`number` counts the processes of the server from 1."""

    number: int
    replica: UUID
    socket: Path


class UnixNeighbours:
    """The other processes, as seen by one process: the socket names in the common folder."""

    def __init__(self, folder: Path, number: int, replica: UUID) -> None:
        self._folder = folder
        self.own = Neighbour(number, replica, folder / f"{number}.{replica}")

    def living(self) -> Sequence[Neighbour]:
        """Returns the other processes. The list may contain a killed process, which refuses connections."""
        found = []
        for path in self._folder.iterdir():
            number, _, replica = path.name.partition(".")
            if path != self.own.socket and number.isdigit() and replica:
                found.append(Neighbour(int(number), UUID(replica), path))
        return found

    @contextmanager
    def listening(self, app: ASGIApp) -> Iterator[tuple[ASGIApp, socket.socket]]:
        path = self.own.socket
        for left in path.parent.glob(f"{self.own.number}.*"):
            left.unlink()  # the socket of a killed process
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o600)  # no process can connect before the socket listens
            yield FromNeighbours(app, path), listener
            path.unlink(missing_ok=True)

    async def is_any_ready(self) -> bool:
        return bool(await self.ask_all("/readyz?exclude=postgres"))

    async def metrics(self, own: bytes) -> bytes:
        return generate_latest(_Together({self.own.number: own.decode(), **await self.ask_all("/metrics")}))

    async def pass_on(self, request: Request, replica: UUID | None) -> Response | None:
        neighbour = next((each for each in self.living() if each.replica == replica), None)
        if neighbour is None:
            return None
        from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, UnixConnector  # noqa: PLC0415
        from yarl import URL  # noqa: PLC0415

        session = ClientSession(
            connector=UnixConnector(path=str(neighbour.socket)),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers.raw
            if name not in {*_OF_THE_CONNECTION, *_OF_A_BODY, _CLIENT}
        ]
        if request.client is not None:
            headers.append((_CLIENT.decode(), f"{request.client.port} {request.client.host}"))
        target = URL(f"http://neighbour{_target_of(request)}", encoded=True)
        try:
            async with asyncio.timeout(_HEAD_PATIENCE):  # a connection to a frozen process still succeeds
                answer = await session.request(request.method, target, headers=headers)
        except (ClientError, OSError):
            await session.close()
            return None
        except BaseException:
            await session.close()
            raise
        return PassedOn(answer, session)

    async def ask_all(self, path: str) -> Mapping[int, str]:
        """Sends a request to each neighbour. Returns the texts of the answers that arrive in time, by number."""
        from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector  # noqa: PLC0415

        async def ask(neighbour: Neighbour) -> tuple[int, str] | None:
            connector = UnixConnector(path=str(neighbour.socket))
            try:
                async with (
                    ClientSession(connector=connector, timeout=ClientTimeout(total=_PATIENCE)) as session,
                    session.get(f"http://neighbour{path}") as answer,
                ):
                    return (neighbour.number, await answer.text()) if answer.ok else None
            except (ClientError, OSError):
                return None

        return dict(filter(None, await asyncio.gather(*map(ask, self.living()))))


class PassedOn(StreamingResponse):
    """A neighbour's answer. The connection to the neighbour is closed when the client's connection is closed for any
    reason. If the neighbour's response is interrupted, this response stays unfinished, too, because a dialect's client
    would regard a finished body as complete.
    """

    def __init__(self, answer: "ClientResponse", session: "ClientSession") -> None:
        super().__init__(answer.content.iter_any(), status_code=answer.status)
        self.raw_headers = [
            (name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _OF_THE_CONNECTION
        ]
        self._answer = answer
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._session, self._answer:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        from aiohttp import ClientError  # noqa: PLC0415

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with suppress(ClientError, OSError):
            async for piece in self.body_iterator:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _target_of(request: Request) -> str:
    """Returns the target of the client's request: without the prefix, which each process adds itself, and with the
    token that was removed from the query.
    """
    path = request.scope["raw_path"].decode("ascii").removeprefix(request.scope.get("root_path", ""))
    query = [request.scope["query_string"].decode("ascii")]
    if token := getattr(request.state, URL_PARAMETER, None):
        query.append(urlencode({URL_PARAMETER: token}))
    return f"{path}?{'&'.join(filter(None, query))}"


class _Together(Collector):
    """The metrics of several processes, with the additional label `process`."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        together: dict[str, Metric] = {}
        for number, text in sorted(self._texts.items()):
            for family in text_string_to_metric_families(text):
                metric = together.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(number)}
                    metric.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
        return together.values()
