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
from app.llm.openai_http import chunks, next_chunk, request_id, retry_after
from app.llm.openai_quirks import OPENAI, Quirks
from app.llm.openai_render import render
from app.llm.openai_wire import BadStream, ChatWire
from app.llm.provider import ModelRequest, Part

_LONGEST_MESSAGE = 1_000  # characters
_LONGEST_DRAIN = 1.0  # seconds
# Seconds that a server may be silent after it has said why the model stopped: some never say that they are done.
_LONGEST_TAIL = 5.0


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
            http_client=openai.DefaultAioHttpClient(limits=limits, timeout=timeout),
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
        with _our_errors():
            body = render(request, self._quirks)
            answer = await self._post("/chat/completions", body)
            try:
                wire = ChatWire(request_id(answer.response.headers), seed=body)
                async with aclosing(_parts(answer.response, wire)) as batches:
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


async def _parts(response: httpx2.Response, wire: ChatWire) -> AsyncGenerator[Sequence[Part], None]:
    """To the end, as this server marks it: its last word, or its reason to stop and then nothing more."""
    async with aclosing(chunks(response)) as body:
        if "json" in response.headers.get("content-type", ""):
            if parts := wire.whole(b"".join([chunk async for chunk in body])):
                yield parts
        else:
            async for chunk in body:
                if parts := wire.feed(chunk):
                    yield parts
                if wire.ended or wire.finished or wire.failure is not None:
                    break
            while wire.finished and not wire.ended and wire.failure is None:
                if not (chunk := await next_chunk(body, _LONGEST_TAIL)):
                    break
                if parts := wire.feed(chunk):
                    yield parts
            if wire.ended:
                while await next_chunk(body, _LONGEST_DRAIN):
                    pass
        if parts := wire.end():
            yield parts


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
    except (openai.APITimeoutError, httpx2.TimeoutException) as error:
        raise TransientError("timeout_error", _words(error)) from error
    except (openai.APIConnectionError, httpx2.HTTPError) as error:
        raise TransientError("connection_error", _words(error)) from error


def _words(error: Exception) -> str:
    cause = error.__cause__
    words = f"{error} ({type(cause).__name__}: {cause})" if cause else f"{type(error).__name__}: {error}"
    return words[:_LONGEST_MESSAGE]


def _failure(wire: ChatWire, response: httpx2.Response) -> Exception:
    if isinstance(wire.failure, BadStream):
        return TransientError("bad_stream", str(wire.failure), request_id=wire.request_id)
    return provider_error(wire.failure, response.status_code, request_id=wire.request_id)
