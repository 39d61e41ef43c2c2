"""Adapters to OpenAI's APIs and compatible servers. The SDK handles addresses, authentication and headers; the adapter
reads the bytes.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

import openai
import structlog

from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TransientError
from turnstream.extensions.openai.chat import render as chat_render
from turnstream.extensions.openai.chat.wire import ChatWire
from turnstream.extensions.openai.params import names_of_tools
from turnstream.extensions.openai.quirks import OPENAI, Quirks
from turnstream.extensions.openai.responses import render as responses_render
from turnstream.extensions.openai.responses.retained import RetainedAnswer
from turnstream.extensions.openai.responses.socket import CallBody, Chain, Socket, SocketCall, Sockets
from turnstream.extensions.openai.responses.wire import ResponsesWire
from turnstream.kit.offload import offload
from turnstream.libraries.providers.transport.calls import Calls, SdkPost
from turnstream.libraries.providers.transport.failures import LOST, Unanswered, connection_error, provider_error
from turnstream.libraries.providers.transport.http import Adapter, http_client, read_token_count
from turnstream.libraries.providers.transport.response import MAX_FAILURE_BYTES, ModelResponse
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.interceptor import Interceptor
from turnstream.llm.models.api import MakeCalls
from turnstream.llm.provider import MAX_EVENT_BYTES, ModelRequest

log = structlog.get_logger(__name__)

_WITHOUT_SOCKET = 60.0  # seconds between a refused WebSocket and the next attempt to open one
_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-generation-id")


class OpenAIProvider(Adapter):
    """The common part of the adapters to both APIs. `base_url` ends before the `path`; `headers` are sent with every
    request; `read_timeout` is in seconds.
    """

    path: str
    render: Callable[[ModelRequest, Quirks], bytes]
    wire: Callable[[ModelRequest, str | None, bytes], Wire]

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        name: str = "openai",
        quirks: Quirks = OPENAI,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        interceptors: Sequence[Interceptor] = (),
        make_calls: MakeCalls | None = None,
        client_certificate: str | None = None,
    ) -> None:
        self.name = name
        self.quirks = quirks
        network = http_client(
            openai.DefaultAioHttpClient,
            interceptors,
            read_timeout=read_timeout,
            client_certificate=client_certificate,
        )
        self._calls = Calls(network) if interceptors or make_calls is None else make_calls(network)
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",  # the SDK requires a key; a server without keys ignores it
            base_url=base_url,
            max_retries=0,
            default_headers=headers,
            http_client=self._calls.client,
        )
        super().__init__(self._client, max_event_bytes)

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        return self._calls.kept_open()

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        body = await offload(request.size, self.render, request, self.quirks)
        async with self._post(self.path, body, "text/event-stream") as response:
            seed = sha256(body).digest()
            del body
            yield response, self.wire(request, _request_id(response.headers), seed)

    @asynccontextmanager
    async def _post(
        self, path: str, body: bytes, accept: str, *, sdk: SdkPost | None = None
    ) -> AsyncIterator[ModelResponse]:
        """Sends the body and yields the response. If `sdk` is given, it sends the request instead of the default
        method.
        """
        if self._client.is_closed():
            raise TransientError("connection_error", f"The connections to {self.name} have been closed.")
        post = self._calls.post if sdk is None else self._calls.post_by_sdk
        accepted = {"Accept": accept, "Accept-Encoding": "identity"}
        try:
            async with post(sdk or self._sdk, path, accepted, body) as response:
                del body
                yield response
        except openai.APIStatusError as error:
            headers, failure = error.response.headers, error.body
            request_id = _request_id(headers)
            raise provider_error(failure, error.status_code, headers=headers, request_id=request_id) from error
        except (openai.APIConnectionError, Unanswered, *LOST) as error:
            raise connection_error(error) from error

    async def _sdk(self, path: str, headers: Mapping[str, str], body: bytes) -> openai.AsyncStream[object]:
        return await self._client.post(
            path,
            content=body,
            options={"headers": headers},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )


class OpenAIChatProvider(OpenAIProvider):
    """The adapter to Chat Completions."""

    path = "/chat/completions"
    render = staticmethod(chat_render.render)
    wire = staticmethod(lambda _, request_id, seed: ChatWire(request_id, seed))


class OpenAIResponsesProvider(OpenAIProvider):
    path = "/responses"
    render = staticmethod(responses_render.render)
    wire = staticmethod(lambda request, id, seed: ResponsesWire(id, seed, names_of_tools(request)))

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._sockets = Sockets(self._connected)
        self._no_socket_before = 0.0

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        if request.options.get("background"):
            opening = self._open_retained(request)
        elif request.options.get("transport") == "websocket" and (chain := await self._chain(request)):
            opening = self._open_socket(request, chain)
        else:
            opening = super()._open(request)
        async with opening as opened:
            yield opened

    async def aclose(self) -> None:
        await self._sockets.aclose()
        await super().aclose()

    async def _chain(self, request: ModelRequest) -> Chain | None:
        """Returns a connection for a call, or None if the provider refuses WebSockets, or did so a short time ago."""
        if self._client.is_closed() or monotonic() < self._no_socket_before:
            return None
        return await self._sockets.open(request.call.turn if request.call else None)

    async def _connected(self) -> Socket | None:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        try:
            return await self._calls.socket(self._sdk, self.path, headers, self._max_event_bytes)
        except (RuntimeError, *LOST) as error:  # RuntimeError: the client was closed meanwhile
            self._no_socket_before = monotonic() + _WITHOUT_SOCKET
            log.warning("socket.refused", provider=self.name, error=type(error).__name__, message=str(error)[:200])
            return None

    @asynccontextmanager
    async def _open_socket(self, request: ModelRequest, chain: Chain) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        call = None
        try:
            body = await offload(request.size, self.render, request, self.quirks)
            wire = ResponsesWire(None, sha256(body).digest(), names_of_tools(request))
            call = SocketCall(self._sockets, chain, await offload(request.size, CallBody.of, body), wire)
            await call.send()
            del body
            yield call.response, wire
        except LOST as error:
            raise connection_error(error) from error
        finally:
            turn = request.call.turn if request.call else None
            if call is None or turn is None or not call.finish(turn):
                self._sockets.close(chain if call is None else call.chain)

    @asynccontextmanager
    async def _open_retained(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        body = await offload(request.size, self.render, request, self.quirks)
        digest = sha256(body).digest()
        wire = ResponsesWire(None, digest, names_of_tools(request), retains=True)
        async with RetainedAnswer(wire, self._retained_from) as answer:
            if request.retained is None or not await self._reopened(answer, request.retained, digest):
                await answer.open(self._post(self.path, body, "text/event-stream"))
            del body
            yield answer.response, wire

    async def _reopened(self, answer: RetainedAnswer, retained: Mapping[str, Any], digest: bytes) -> bool:
        """Opens the retained answer again. Returns False if the provider no longer has it, or if it answers another
        request; an answer to another request is cancelled.
        """
        id = str(retained.get("id"))
        if retained.get("request") != digest.hex():
            try:
                await self.discard(retained)
            except ProviderError as error:
                log.warning("answer.not_cancelled", id=id, error=error.type)
            return False
        try:
            await answer.open(self._retained_from(id, None))
        except AccountRefused:
            raise
        except PermanentError as error:
            log.warning("answer.lost", id=id, error=error.type, message=error.message)
            return False
        return True

    def _retained_from(self, id: str, after: int | None) -> AbstractAsyncContextManager[ModelResponse]:
        """Requests the events of a retained answer that follow the event `after`, by default all events."""
        query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
        path = f"{self.path}/{quote(id, safe='')}?{urlencode(query)}"
        return self._post(path, b"", "text/event-stream", sdk=self._sdk_get)

    async def _sdk_get(self, path: str, headers: Mapping[str, str], _: bytes) -> openai.AsyncStream[object]:
        return await self._client.get(
            path,
            options={"headers": headers},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )

    async def discard(self, retained: Mapping[str, Any]) -> None:
        path = f"{self.path}/{quote(str(retained.get('id')), safe='')}/cancel"
        async with self._post(path, b"{}", "application/json", sdk=self._sdk) as response:
            await response.whole(MAX_FAILURE_BYTES)

    async def count(self, request: ModelRequest) -> int:
        body = await offload(request.size, responses_render.render_count, request, self.quirks)
        async with self._post(f"{self.path}/input_tokens", body, "application/json", sdk=self._sdk) as response:
            return await read_token_count(response)


def _request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)
