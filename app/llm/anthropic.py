"""The Anthropic Messages API: the SDK does address, authentication, headers and errors; we read the bytes."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from types import TracebackType
from typing import Self

import anthropic
import httpx2

from app.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from app.llm.anthropic_render import render
from app.llm.anthropic_wire import BadStream, ErrorEvent, Wire
from app.llm.provider import ModelRequest, Part
from app.llm.tap import Tap, tapped

# The provider's names for what will be the same next time, and for what will not.
_PERMANENT = frozenset(
    {
        "authentication_error",
        "billing_error",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)
_TRANSIENT = frozenset({"api_error", "conflict_error", "overloaded_error", "rate_limit_error", "timeout_error"})
_TRANSIENT_STATUSES = frozenset({408, 409, 429})
_TOO_LARGE = 413
_TOO_LONG_WORDS = re.compile(r"prompt is too long|model context window|context limit", re.IGNORECASE)
_LONGEST_MESSAGE = 1_000  # characters
_LONGEST_DRAIN = 1.0  # seconds


class AnthropicProvider:
    """Make it once and close it once: the client inside costs 20 ms and holds the connections.

    Timeouts are in seconds. Whoever reads the stream times its silence, so there is no second clock for that here,
    unless `read_timeout` asks for one.
    """

    name = "anthropic"

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        max_connections: int = 10_000,
        connect_timeout: float = 5.0,
        read_timeout: float | None = None,
        taps: Sequence[Tap] = (),
    ) -> None:
        timeout = httpx2.Timeout(read_timeout, connect=connect_timeout)
        limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=30
        )
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=tapped(anthropic.DefaultAioHttpClient(limits=limits, timeout=timeout), taps),
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
            answer = await self._post(request)
            wire = Wire(answer.response.headers.get("request-id"))
            try:
                async with aclosing(_chunks(answer.response)) as chunks:
                    async for chunk in chunks:
                        if parts := wire.feed(chunk):
                            yield parts
                        if wire.failure or wire.ended:
                            break
                    if wire.ended:
                        await _drain(chunks)
                if parts := wire.end():
                    yield parts
                if wire.failure:
                    raise _failure(wire.failure, answer.response)
            finally:
                await answer.close()

    async def _post(self, request: ModelRequest) -> anthropic.AsyncStream[object]:
        betas = request.params.get("betas")
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        return await self._client.post(
            "/v1/messages?beta=true" if betas else "/v1/messages",
            content=render(request),
            options={"headers": headers},
            cast_to=object,
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )


def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. We ask for it uncompressed, but a gateway may know better."""
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(chunks, AsyncGenerator)
    return chunks


async def _drain(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read what is behind the last event, so that the connection can be used again; but never wait for long."""
    with contextlib.suppress(StopAsyncIteration, TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_LONGEST_DRAIN):
            while True:
                await anext(chunks)


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except anthropic.APIStatusError as error:
        raise _refusal(error) from error
    except (anthropic.APITimeoutError, httpx2.TimeoutException) as error:
        raise TransientError("timeout_error", _words(error)) from error
    except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
        raise TransientError("connection_error", _words(error)) from error


def _words(error: Exception) -> str:
    cause = error.__cause__
    words = f"{error} ({type(cause).__name__}: {cause})" if cause else f"{type(error).__name__}: {error}"
    return words[:_LONGEST_MESSAGE]


def _refusal(error: anthropic.APIStatusError) -> ProviderError:
    headers = error.response.headers
    body = error.body if isinstance(error.body, dict) else {}
    words = (error.api_message or str(error.body or error.message))[:_LONGEST_MESSAGE]
    if error.status_code == _TOO_LARGE or _TOO_LONG_WORDS.search(words):
        kind: type[ProviderError] = TooLong
    else:
        kind = _kind(error.type, error.status_code, headers.get("x-should-retry"))
    return kind(
        error.type or f"http_{error.status_code}",
        words,
        request_id=error.request_id or body.get("request_id"),
        retry_after=_retry_after(headers),
    )


def _failure(failure: ErrorEvent | BadStream, response: httpx2.Response) -> ProviderError:
    request_id = response.headers.get("request-id")
    if isinstance(failure, BadStream):
        return TransientError("bad_stream", str(failure), request_id=request_id)
    kind = _kind(failure.type, response.status_code, None)
    return kind(failure.type, failure.message[:_LONGEST_MESSAGE], request_id=failure.request_id or request_id)


def _kind(type: str | None, status: int, should_retry: str | None) -> type[TransientError] | type[PermanentError]:
    """The server's own word first, then the name of the error: errors in mid-stream have status 200."""
    if should_retry in {"true", "false"}:
        return TransientError if should_retry == "true" else PermanentError
    if type in _PERMANENT or type in _TRANSIENT:
        return PermanentError if type in _PERMANENT else TransientError
    permanent = 400 <= status < 500 and status not in _TRANSIENT_STATUSES
    return PermanentError if permanent else TransientError


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds, from any of the three ways to say it."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    words = headers.get("retry-after", "")
    seconds = _number(words)
    return _until(words) if seconds is None else seconds


def _number(words: str) -> float | None:
    try:
        number = float(words)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _until(words: str) -> float | None:
    try:
        date = parsedate_to_datetime(words)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
