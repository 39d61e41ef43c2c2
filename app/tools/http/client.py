"""Requests to addresses that others chose: none of them leads inside, and no answer is longer than it may be."""

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
)
from yarl import URL

from app.kit.signature import headers_of
from app.tools.http.addresses import AddressRefused, Allowed, UrlRefused

_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WITH_THE_BODY = frozenset({307, 308})
_PIECE = 65_536
_ACCEPT = {"accept": "application/json, text/*;q=0.9, */*;q=0.1", "accept-encoding": "gzip, deflate"}


class AnswerTooLong(Exception):
    """There is more of it than is read."""


class HostUnreachable(Exception):
    """There was no answer. The message is for the log alone."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST of JSON. What is `allowed` may be internal. `secrets` are headers: they, and the signature made with
    `signing_secret`, are for the origin of `url` alone.
    """

    url: str
    body: bytes
    idempotency_key: str
    allowed: Allowed
    secrets: Mapping[str, str] = field(default_factory=dict)
    signing_secret: str | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """`media_type` is what the server says that it is."""

    status: int
    body: bytes
    charset: str | None
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One request on the way to an answer. `at_home`: to the origin that the request named."""

    url: URL
    body: bytes | None
    at_home: bool = True

    def to(self, response: ClientResponse, location: str) -> "Hop":
        try:
            url = self.url.join(URL(location))
            at_home = self.at_home and url.origin() == self.url.origin()
        except ValueError:
            raise UrlRefused("it redirects to something that is no URL") from None
        return Hop(url, self.body if response.status in _WITH_THE_BODY else None, at_home)

    def headers(self, request: HttpRequest, now: float) -> dict[str, str]:
        headers = {**request.secrets, **_ACCEPT} if self.at_home else dict(_ACCEPT)
        if self.body is not None:
            headers |= {"content-type": "application/json", "idempotency-key": request.idempotency_key}
        if self.body is not None and self.at_home and request.signing_secret is not None:
            headers |= headers_of(request.signing_secret, request.idempotency_key, int(now), self.body)
        return headers


class HttpClient:
    """Reads `max_answer_bytes` of an answer, after decompression. How long that may take is the caller's choice."""

    def __init__(
        self, allowed: Allowed, max_answer_bytes: int = 1_000_000, clock: Callable[[], float] = time.time
    ) -> None:
        self._allowed = allowed
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connections to hosts that are allowed by name are kept apart: no others are free to lead inside."""
        self._guarded = await self._stack.enter_async_context(_session(socket_factory=self._allowed.open_socket))
        self._free = await self._stack.enter_async_context(_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def post(self, request: HttpRequest) -> HttpResponse:
        """Raises UrlRefused, AnswerTooLong or HostUnreachable. A status of failure is an answer."""
        try:
            return await self._follow(request)
        except ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                raise UrlRefused("the URL leads to an internal address") from None
            raise HostUnreachable(f"{error.host}: {error.os_error}") from None
        except InvalidURL:
            raise UrlRefused("the URL is not valid") from None
        except (ClientError, OSError) as error:  # its words may hold the whole URL
            raise HostUnreachable(type(error).__name__) from None

    async def _follow(self, request: HttpRequest) -> HttpResponse:
        hop = Hop(parsed(request.url), request.body)
        for _ in range(_MOST_REDIRECTS + 1):
            request.allowed.check(hop.url)
            async with self._send(hop, request) as response:
                location = response.headers.get("location") if response.status in _REDIRECTS else None
                if location is None:
                    return HttpResponse(
                        response.status, await self._read(response), response.charset, response.content_type
                    )
                response.close()
            hop = hop.to(response, location)
        raise UrlRefused("it redirects too often")

    def _send(self, hop: Hop, request: HttpRequest) -> Any:
        session = self._free if request.allowed.names(hop.url.host or "") else self._guarded
        method = "GET" if hop.body is None else "POST"
        headers = hop.headers(request, self._clock())
        return session.request(method, hop.url, data=hop.body, headers=headers, allow_redirects=False)

    async def _read(self, response: ClientResponse) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_chunked(_PIECE):
            body += piece
            if len(body) > self._max_answer_bytes:
                response.close()
                raise AnswerTooLong
        return bytes(body)


def parsed(url: str) -> URL:
    try:
        return URL(url)
    except ValueError:
        raise UrlRefused("the URL is not valid") from None


def _session(**connection: Any) -> ClientSession:
    """As many connections as calls: those are limited already."""
    return ClientSession(
        connector=TCPConnector(limit=0, **connection),
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None),
        headers={"user-agent": "turnstream"},
    )
