"""Adapter to the Gemini API. It does without Google's SDK, because requests are simple, and parts must be sent back
byte for byte.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from urllib.parse import quote

import httpx2
import msgspec

from turnstream.domain.errors import TransientError
from turnstream.extensions.gemini.render import render, render_count
from turnstream.extensions.gemini.wire import GeminiWire
from turnstream.kit.offload import offload
from turnstream.libraries.providers.transport.failures import LOST, Unanswered, connection_error, provider_error
from turnstream.libraries.providers.transport.http import MAX_COUNT_BYTES, Adapter, http_client
from turnstream.libraries.providers.transport.response import ModelResponse, cut_failure, open_response
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.interceptor import Interceptor
from turnstream.llm.provider import MAX_EVENT_BYTES, ModelRequest
from turnstream.tracing import TRACING

BASE_URL = "https://generativelanguage.googleapis.com/v1"
_REQUEST_IDS = ("x-request-id", "x-goog-request-id")


class _Count(msgspec.Struct):
    totalTokens: int  # noqa: N815


class GeminiProvider(Adapter):
    """Calls models of the Gemini API. `base_url` ends before `/models`; `headers` are sent with every request;
    `read_timeout` is in seconds. `params` names additional members of a request that turns may set. `credentials`
    returns headers that vary from call to call.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        name: str = "gemini",
        vertex: bool = False,
        credentials: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
        params: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        interceptors: Sequence[Interceptor] = (),
        client_certificate: str | None = None,
    ) -> None:
        self.name = name
        self._base_url = (base_url or BASE_URL).rstrip("/")
        self._vertex = vertex
        self._credentials = credentials
        self._further = frozenset(params)
        self._headers = {**({"x-goog-api-key": api_key} if api_key else {}), **(headers or {})}
        self._client = http_client(
            httpx2.AsyncClient, interceptors, read_timeout=read_timeout, client_certificate=client_certificate
        )
        self._client.event_hooks = {"response": [cut_failure]}
        super().__init__(_Closing(self._client), max_event_bytes)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        body = await offload(request.size, render, request, self._further)
        async with self._post(request.model, "streamGenerateContent?alt=sse", body, "text/event-stream") as response:
            seed = sha256(body).digest()
            del body
            yield response, GeminiWire(_request_id(response.headers), request.model, seed)

    async def count(self, request: ModelRequest) -> int:
        body = await offload(request.size, render_count, request, vertex=self._vertex)
        async with self._post(request.model, "countTokens", body, "application/json") as response:
            try:
                return msgspec.json.decode(await response.whole(MAX_COUNT_BYTES), type=_Count).totalTokens
            except msgspec.DecodeError as error:
                raise TransientError("bad_count", "The provider's count of tokens could not be read.") from error

    @asynccontextmanager
    async def _post(self, model: str, method: str, body: bytes, accept: str) -> AsyncIterator[ModelResponse]:
        if self._client.is_closed:
            raise TransientError("connection_error", f"The connections to {self.name} have been closed.")
        path = quote(model if "/" in model else f"models/{model}", safe="/@:")
        headers = {**self._headers, "Accept": accept, "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._credentials is not None:
            headers |= await self._credentials()
        async with AsyncExitStack() as stack:
            try:
                response = await self._send(
                    f"{self._base_url}/{path}:{method}", {**headers, **TRACING.outgoing()}, body
                )
                del body
                stack.push_async_callback(response.aclose)
                if not response.is_success:
                    raise _failure(await response.aread(), response)
                yield await stack.enter_async_context(open_response(response))
            except (Unanswered, *LOST) as error:
                raise connection_error(error) from error

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> httpx2.Response:
        try:
            request = self._client.build_request("POST", url, headers=headers, content=body)
            return await self._client.send(request, stream=True)
        except (*LOST, httpx2.InvalidURL) as error:
            raise Unanswered from error


class _Closing:
    """Lets the adapter close the client."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.close = client.aclose


def _failure(body: bytes, response: httpx2.Response) -> Exception:
    try:
        failure = msgspec.json.decode(body)
    except ValueError:
        failure = body.decode("utf-8", "replace")
    if b'"API_KEY_INVALID"' in body:  # Google reports a wrong key as an invalid argument
        failure = {"status": "UNAUTHENTICATED", "message": "The API key is not valid."}
    request_id = _request_id(response.headers)
    return provider_error(failure, response.status_code, headers=response.headers, request_id=request_id)


def _request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)
