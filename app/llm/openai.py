"""OpenAI's APIs and those that imitate them: the SDK does address, authentication and headers; we read the bytes."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import httpx2
import openai

from app.domain.errors import TransientError
from app.llm.http import Connected, connections, lost, parts_of, retry_after
from app.llm.openai_errors import provider_error
from app.llm.openai_quirks import OPENAI, Quirks
from app.llm.openai_render import render
from app.llm.openai_wire import ChatWire
from app.llm.provider import ModelRequest, Part
from app.llm.tap import Tap
from app.llm.wire import BadStream, Wire

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-generation-id")


class OpenAIWire(Wire, Protocol):
    request_id: str | None


class OpenAIProvider(Connected, ABC):
    """What OpenAI's APIs have in common. `base_url` ends where the path begins. `headers` are sent with every request.

    `read_timeout` is in seconds.
    """

    path: str

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        name: str = "openai",
        quirks: Quirks = OPENAI,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        taps: Sequence[Tap] = (),
    ) -> None:
        self.name = name
        self.quirks = quirks
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",  # the SDK wants one, and servers of one's own do not read it
            base_url=base_url,
            max_retries=0,
            default_headers=headers,
            http_client=connections(openai.DefaultAioHttpClient, taps, read_timeout=read_timeout),
        )
        super().__init__(self._client)

    @abstractmethod
    def body(self, request: ModelRequest) -> bytes:
        """What is posted."""

    @abstractmethod
    def wire(self, request_id: str | None, body: bytes) -> OpenAIWire:
        """What reads the answer to `body`."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        if self._client.is_closed():
            raise TransientError("connection_error", f"the connections to {self.name} have been closed")
        with _our_errors():
            body = self.body(request)
            answer = await self._post(body)
            try:
                wire = self.wire(request_id(answer.response.headers), body)
                async with aclosing(parts_of(answer.response, wire)) as batches:
                    async for parts in batches:
                        yield parts
                if wire.failure is not None:
                    raise _failure(wire, answer.response)
            finally:
                await answer.close()

    async def _post(self, body: bytes) -> openai.AsyncStream[object]:
        return await self._client.post(
            self.path,
            content=body,
            options={"headers": {"Accept": "text/event-stream", "Accept-Encoding": "identity"}},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )


class OpenAIChatProvider(OpenAIProvider):
    """Chat Completions."""

    path = "/chat/completions"

    def body(self, request: ModelRequest) -> bytes:
        return render(request, self.quirks)

    def wire(self, request_id: str | None, body: bytes) -> ChatWire:
        return ChatWire(request_id, seed=body)


def request_id(headers: httpx2.Headers) -> str | None:
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except openai.APIStatusError as error:
        headers = error.response.headers
        raise provider_error(
            error.body or error.message,
            error.status_code,
            should_retry=headers.get("x-should-retry"),
            request_id=request_id(headers),
            retry_after=retry_after(headers),
        ) from error
    except (openai.APIConnectionError, httpx2.HTTPError) as error:
        raise lost(error) from error


def _failure(wire: OpenAIWire, response: httpx2.Response) -> Exception:
    if isinstance(wire.failure, BadStream):
        return TransientError("bad_stream", str(wire.failure), request_id=wire.request_id)
    return provider_error(wire.failure, response.status_code, request_id=wire.request_id)
