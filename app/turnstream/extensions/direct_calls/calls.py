"""Sends model calls without the SDK's building of requests, which is the most expensive part of a call.

For each type of call, the SDK builds two sample requests, which are answered here and never reach the network. If their
heads are equal, the head becomes a template. A direct call sends this head with its own body, over the same
connections.

Only a plain success is handled here. Every other answer is passed to the SDK as the answer to its own request, because
the SDK handles redirects, errors and compressed bodies.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx2
from multidict import CIMultiDict, istr
from yarl import URL

from turnstream.extensions.direct_calls.kept_open import kept_open, pooled_connection
from turnstream.extensions.direct_calls.pausing import PausingReader
from turnstream.extensions.direct_calls.sdk_session import session_for
from turnstream.libraries.providers.transport.calls import Calls, SdkPost
from turnstream.libraries.providers.transport.failures import LOST, Unanswered
from turnstream.libraries.providers.transport.response import ModelResponse
from turnstream.tracing import TRACING

_MAX_TEMPLATES = 100  # maximum number of templates of one client; each template is for one path with its headers
_BY_CALL = {"content-length", "cookie"}  # headers that differ from call to call
_OF_SOCKETS = {"url", "proxy", "proxy_auth", "proxy_headers", "server_hostname"}
_OF_BODIES = {"accept", "accept-encoding", "connection", "content-type"}
_HANDSHAKE, _CLOSE = 10.0, 1.0  # seconds
_BODIES = (b"{}", b"[1]")  # bodies of the sample requests from which a template is learned

# If set, this function answers the SDK's next request in this task, and the network is not used.
_answer: ContextVar[Callable[[httpx2.Request], httpx2.Response] | None] = ContextVar("answer", default=None)


class DirectCalls(Calls):
    """Sends calls directly if the SDK builds all calls of a type with the same head. Otherwise the SDK sends them."""

    def __init__(self, network: httpx2.AsyncClient) -> None:
        self._network = network
        self._templates: dict[tuple[str, ...], _Template | None] = {}
        self._last: _Template | None = None
        super().__init__(
            httpx2.AsyncClient(
                transport=_BelowSdk(network), timeout=network.timeout, follow_redirects=network.follow_redirects
            )
        )

    @asynccontextmanager
    async def post(
        self, sdk: SdkPost, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[ModelResponse]:
        template = None if self.client.is_closed else await self._template(sdk, path, headers)
        if template is None:
            async with self.post_by_sdk(sdk, path, headers, body) as opened:
                del body
                yield opened
            return
        self._last = template
        async with await template.send(body, self.client.cookies) as response:
            if 200 <= response.status < 300 and "content-encoding" not in response.headers:
                if "set-cookie" in response.headers:
                    self.client.cookies.extract_cookies(_for_sdk(response, template.request))
                del body
                yield ModelResponse(response.status, response.headers, PausingReader(response).read)
                return
            _answer.set(lambda request: _for_sdk(response, request))
            try:
                async with self.post_by_sdk(sdk, path, headers, body) as opened:
                    yield opened
            finally:
                _answer.set(None)

    async def socket(
        self, sdk: SdkPost, path: str, headers: Mapping[str, str], max_bytes: int
    ) -> "aiohttp.ClientWebSocketResponse[bool] | None":
        """Opens a WebSocket if there is a template for it. Raises one of the exceptions in `LOST` if this fails."""
        template = None if self.client.is_closed else await self._template(sdk, path, headers)
        return None if template is None else await template.socket(max_bytes)

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._last is None else kept_open(self._last.connect)

    async def _template(self, sdk: SdkPost, path: str, headers: Mapping[str, str]) -> "_Template | None":
        key = (path, *headers.values())
        if key not in self._templates:
            requests = [await _built(sdk, path, headers, body) for body in _BODIES]
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[key] = self._learned(*requests)
        return self._templates[key]

    def _learned(self, request: httpx2.Request, other: httpx2.Request) -> "_Template | None":
        """Returns the template for these two sample requests. Returns None if a part of their heads differs: the SDK
        must then build every request.
        """
        found = session_for(self._network, request.url)
        if _head(request) != _head(other) or found is None:
            return None
        session, proxy = found
        for name in _BY_CALL & request.headers.keys():
            del request.headers[name]
        # aiohttp converts each name to `istr` in each call, unless the name already is an `istr`.
        head = CIMultiDict((istr(name), value) for name, value in request.headers.multi_items())
        return _Template(session, request, head, _options(request, proxy))


@dataclass(frozen=True, slots=True)
class _Template:
    """A request without its body. `options` are the options that the SDK's transport passes to aiohttp."""

    session: aiohttp.ClientSession
    request: httpx2.Request
    headers: CIMultiDict[str]
    options: Mapping[str, Any]

    async def send(self, body: bytes, cookies: httpx2.Cookies) -> aiohttp.ClientResponse:
        """Sends the body and waits for the head of the response. Raises Unanswered."""
        headers = self.headers.copy()
        if cookies:
            request = httpx2.Request("POST", self.request.url)
            cookies.set_cookie_header(request)
            if "cookie" in request.headers:
                headers["cookie"] = request.headers["cookie"]
        headers["content-length"] = str(len(body))
        headers.update(TRACING.outgoing())
        try:
            return await self.session.request(self.request.method, headers=headers, data=body, **self.options)
        except (*LOST, RuntimeError) as error:  # RuntimeError means that the session was closed meanwhile
            raise Unanswered from error

    async def socket(self, max_bytes: int) -> "aiohttp.ClientWebSocketResponse[bool]":
        """Opens a WebSocket. Raises one of the exceptions in `LOST` if this fails or if the server refuses the
        WebSocket.
        """
        options = {name: value for name, value in self.options.items() if name in _OF_SOCKETS}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_BODIES}
        timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE)
        async with asyncio.timeout(_HANDSHAKE):
            socket: aiohttp.ClientWebSocketResponse[bool] = await self.session.ws_connect(
                headers={**headers, **TRACING.outgoing()}, timeout=timeout, max_msg_size=max_bytes, **options
            )
            return socket

    async def connect(self) -> aiohttp.connector.Connection:
        """Returns a connection for a call, either from the pool or new."""
        return await pooled_connection(self.session, self.request.method, self.options)


def _options(request: httpx2.Request, proxy: httpx2.Proxy | None) -> Mapping[str, Any]:
    timeout = request.extensions["timeout"]
    options: dict[str, Any] = {
        "url": URL(str(request.url)),
        "allow_redirects": False,
        "auto_decompress": False,
        "timeout": aiohttp.ClientTimeout(
            sock_connect=timeout["connect"], sock_read=timeout["read"], connect=timeout["pool"]
        ),
        "server_hostname": request.extensions.get("sni_hostname"),
    }
    if proxy is not None:
        options |= {"proxy": URL(str(proxy.url)), "proxy_headers": proxy.headers}
        if proxy.auth is not None:
            options["proxy_auth"] = aiohttp.BasicAuth(*proxy.auth)
    return options


async def _built(sdk: SdkPost, path: str, headers: Mapping[str, str], body: bytes) -> httpx2.Request:
    """Returns the request that the SDK builds, without sending it."""
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200)

    _answer.set(answer)
    try:
        async with await sdk(path, headers, body):
            return requests[0]
    finally:
        _answer.set(None)


def _head(request: httpx2.Request) -> tuple[object, ...]:
    headers = [(name, value) for name, value in request.headers.multi_items() if name not in _BY_CALL]
    return request.method, str(request.url), headers, request.extensions


class _BelowSdk(httpx2.AsyncBaseTransport):
    """Answers an SDK's request if an answer is set for it. Otherwise passes the request on to the network."""

    def __init__(self, network: httpx2.AsyncClient) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = _answer.get()
        if answer is None:
            return await self._network.send(request, stream=True, follow_redirects=False)
        _answer.set(None)
        return answer(request)

    async def aclose(self) -> None:
        await self._network.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._response.content.readany():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            kind = httpx2.ReadTimeout if isinstance(error, TimeoutError) else httpx2.ReadError
            raise kind(str(error)) from error


def _for_sdk(response: aiohttp.ClientResponse, request: httpx2.Request) -> httpx2.Response:
    reason = {"reason_phrase": response.reason.encode()} if response.reason else {}
    return httpx2.Response(
        response.status,
        headers=response.raw_headers,
        stream=_Body(response),
        request=request,
        extensions={"http_version": b"HTTP/1.1", **reason},
    )
