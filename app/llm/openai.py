"""OpenAI's APIs and those that imitate them: the SDK does address, authentication and headers; we read the bytes."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import httpx2
import openai

from app.domain.errors import TransientError
from app.llm.openai_errors import provider_error
from app.llm.openai_http import parts_of, request_id, retry_after
from app.llm.openai_quirks import OPENAI, Quirks
from app.llm.openai_render import render
from app.llm.openai_wire import BadStream, ChatWire
from app.llm.provider import ModelRequest, Part
from app.llm.tap import Tap, tapped

_LONGEST_MESSAGE = 1_000  # characters


class OpenAIChatProvider:
    """Chat Completions. Make it once and close it once: the client inside costs 20 ms and holds the connections.

    `base_url` ends where `/chat/completions` begins. `headers` are sent with every request. Timeouts are in seconds;
    whoever reads the stream times its silence, so there is no second clock here unless `read_timeout` asks for one.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        name: str = "openai",
        quirks: Quirks = OPENAI,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 10_000,
        connect_timeout: float = 5.0,
        read_timeout: float | None = None,
        taps: Sequence[Tap] = (),
    ) -> None:
        self.name = name
        self._quirks = quirks
        timeout = httpx2.Timeout(read_timeout, connect=connect_timeout)
        limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=30
        )
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",  # the SDK wants one, and servers of one's own do not read it
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            default_headers=headers,
            http_client=tapped(openai.DefaultAioHttpClient(limits=limits, timeout=timeout), taps),
        )

    async def aclose(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        if self._client.is_closed():
            raise TransientError("connection_error", f"the connections to {self.name} have been closed")
        with _our_errors():
            body = render(request, self._quirks)
            answer = await self._post("/chat/completions", body)
            try:
                wire = ChatWire(request_id(answer.response.headers), seed=body)
                async with aclosing(parts_of(answer.response, wire)) as batches:
                    async for parts in batches:
                        yield parts
                if wire.failure is not None:
                    raise _failure(wire, answer.response)
            finally:
                await answer.close()

    async def _post(self, path: str, body: bytes) -> openai.AsyncStream[object]:
        return await self._client.post(
            path,
            content=body,
            options={"headers": {"Accept": "text/event-stream", "Accept-Encoding": "identity"}},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )


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
        raise TransientError(_trouble(error), _words(error)) from error


def _trouble(error: Exception) -> str:
    """The transport calls every failure to connect a timeout."""
    cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    timed_out = isinstance(cause, httpx2.TimeoutException) and not isinstance(cause, httpx2.ConnectTimeout)
    return "timeout_error" if timed_out else "connection_error"


def _words(error: Exception) -> str:
    cause = error.__cause__
    words = f"{error} ({type(cause).__name__}: {cause})" if cause else f"{type(error).__name__}: {error}"
    return words[:_LONGEST_MESSAGE]


def _failure(wire: ChatWire, response: httpx2.Response) -> Exception:
    if isinstance(wire.failure, BadStream):
        return TransientError("bad_stream", str(wire.failure), request_id=wire.request_id)
    return provider_error(wire.failure, response.status_code, request_id=wire.request_id)
