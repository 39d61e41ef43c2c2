"""The HTTP client of tools. URLs are untrusted: a request reaches an internal address only if the address is allowed,
and the size of answers is limited.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.addresses import AddressRefused, Allowed, UrlRefused
from turnstream.libraries.outgoing.signature import headers_of
from turnstream.tracing import TRACING

_MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REPEATED_WITH_BODY = frozenset({307, 308})
_CHUNK = 65_536
_ACCEPT = {"accept": "application/json, text/*;q=0.9, */*;q=0.1", "accept-encoding": "gzip, deflate"}


class AnswerTooLong(Exception):
    """The body of an answer is longer than the limit."""


class HostUnreachable(Exception):
    """No answer arrived. The message is for the log alone."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST of JSON. `allowed` has the internal addresses that the request may reach. `secrets` are headers. Only the
    origin of `url` gets these headers, and the signature that is made with `signing_secret`.
    """

    url: str
    body: bytes
    idempotency_key: str
    allowed: Allowed
    secrets: Mapping[str, str] = field(default_factory=dict)
    signing_secret: str | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer. `media_type` and `charset` come from the header Content-Type, `challenge` from WWW-Authenticate.
    `challenge` is None if the answer comes from another origin, which got no secrets.
    """

    status: int
    body: bytes
    charset: str | None
    media_type: str | None = None
    challenge: str | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain of redirects. `same_origin` is true while the chain has not left the first origin."""

    url: URL
    body: bytes | None
    same_origin: bool = True

    def next(self, response: ClientResponse, location: str) -> "Hop":
        try:
            url = self.url.join(URL(location))
            same_origin = self.same_origin and url.origin() == self.url.origin()
        except ValueError:
            raise UrlRefused("it redirects to something that is no URL") from None
        return Hop(url, self.body if response.status in _REPEATED_WITH_BODY else None, same_origin)

    def headers(self, request: HttpRequest, now: float) -> dict[str, str]:
        headers = {**request.secrets, **_ACCEPT} if self.same_origin else dict(_ACCEPT)
        if self.body is not None:
            headers |= {"content-type": "application/json", "idempotency-key": request.idempotency_key}
        if self.body is not None and self.same_origin and request.signing_secret is not None:
            headers |= headers_of(request.signing_secret, request.idempotency_key, int(now), self.body)
        return headers


class HttpClient:
    """Sends the requests of tools. Reads up to `max_answer_bytes` of an answer, measured after decompression. The
    caller must limit the time.
    """

    def __init__(
        self, allowed: Allowed, max_answer_bytes: int = 1_000_000, clock: Callable[[], float] = CLOCK.seconds
    ) -> None:
        self._allowed = allowed
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock

    async def __aenter__(self) -> Self:
        # Two pools: connections to hosts that are allowed by name are not checked, so requests without that permission
        # must not reuse them.
        self._guarded = _session(socket_factory=self._allowed.open_socket)
        self._free = _session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._guarded.close()
        await self._free.close()

    async def post(self, request: HttpRequest) -> HttpResponse:
        """Sends the request, and returns the answer, whatever its status is. Raises UrlRefused, AnswerTooLong or
        HostUnreachable.
        """
        try:
            return await self._follow(request)
        except ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                raise UrlRefused("the URL leads to an internal address") from None
            raise HostUnreachable(f"{error.host}: {error.os_error}") from None
        except InvalidURL:
            raise UrlRefused("the URL is not valid") from None
        except (ClientError, OSError) as error:  # its message may contain the whole URL, including secrets
            raise HostUnreachable(type(error).__name__) from None

    async def _follow(self, request: HttpRequest) -> HttpResponse:
        hop = Hop(parse_url(request.url), request.body)
        for _ in range(_MAX_REDIRECTS + 1):
            request.allowed.check(hop.url)
            session = self._free if request.allowed.allows_host(hop.url.host or "") else self._guarded
            method = "GET" if hop.body is None else "POST"
            headers = hop.headers(request, self._clock())
            if hop.same_origin:
                headers |= TRACING.outgoing()
            sent = session.request(method, hop.url, data=hop.body, headers=headers, allow_redirects=False)
            async with sent as response:
                location = response.headers.get("location") if response.status in _REDIRECTS else None
                if location is None:
                    body = await self._read(response)
                    challenge = response.headers.get("www-authenticate", "") if hop.same_origin else None
                    return HttpResponse(response.status, body, response.charset, response.content_type, challenge)
                response.close()
            hop = hop.next(response, location)
        raise UrlRefused("it redirects too often")

    async def _read(self, response: ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._max_answer_bytes:
                response.close()
                raise AnswerTooLong
        return bytes(body)


def parse_url(url: str) -> URL:
    try:
        return URL(url)
    except ValueError:
        raise UrlRefused("the URL is not valid") from None


def _session(**connection: Any) -> ClientSession:
    return ClientSession(
        connector=TCPConnector(limit=0, **connection),  # no limit: the toolset limits the calls
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None),
        headers={"user-agent": "turnstream"},
    )
