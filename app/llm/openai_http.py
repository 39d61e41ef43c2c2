"""The body of a streamed answer as it arrives, and what its headers say."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

import httpx2

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-generation-id")


def chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. We ask for it uncompressed, but a gateway may know better."""
    found = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(found, AsyncGenerator)
    return found


async def next_chunk(body: AsyncGenerator[bytes, None], longest: float) -> bytes:
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
