"""A streamed answer as it arrives, to its end, and what its headers say."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Protocol

import httpx2

from app.llm.provider import Part

_LONGEST_DRAIN = 1.0  # seconds
# Seconds that a server may be silent after it has said why the model stopped: some never say that they are done.
_LONGEST_TAIL = 5.0
_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-generation-id")


class Wire(Protocol):
    """What reads one answer. `ended` and `failure` are its good and bad end; once `finished`, nothing need follow."""

    ended: bool
    failure: object

    @property
    def finished(self) -> bool: ...

    def feed(self, chunk: bytes) -> Sequence[Part]: ...

    def whole(self, body: bytes) -> Sequence[Part]: ...

    def end(self) -> Sequence[Part]: ...


async def parts_of(response: httpx2.Response, wire: Wire) -> AsyncGenerator[Sequence[Part], None]:
    """In batches, to the end as this server marks it: its last word, or its reason to stop and then nothing more."""
    async with aclosing(_chunks(response)) as body:
        if "json" in response.headers.get("content-type", ""):
            if parts := wire.whole(b"".join([chunk async for chunk in body])):
                yield parts
        else:
            async with aclosing(_streamed(body, wire)) as batches:
                async for parts in batches:
                    yield parts
        if parts := wire.end():
            yield parts


async def _streamed(body: AsyncGenerator[bytes, None], wire: Wire) -> AsyncGenerator[Sequence[Part], None]:
    async for chunk in body:
        if parts := wire.feed(chunk):
            yield parts
        if wire.finished or wire.ended or wire.failure is not None:
            break
    while wire.finished and not wire.ended and wire.failure is None and (chunk := await _next(body, _LONGEST_TAIL)):
        if parts := wire.feed(chunk):
            yield parts
    while wire.ended and await _next(body, _LONGEST_DRAIN):  # so that the connection can be used again
        pass


def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. We ask for it uncompressed, but a gateway may know better."""
    found = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(found, AsyncGenerator)
    return found


async def _next(body: AsyncGenerator[bytes, None], longest: float) -> bytes:
    """What comes next, or nothing where nothing comes for so many seconds, or the connection is lost."""
    with contextlib.suppress(StopAsyncIteration, TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(longest):
            return await anext(body)
    return b""


def request_id(headers: httpx2.Headers) -> str | None:
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


def retry_after(headers: httpx2.Headers) -> float | None:
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
