"""Adapter to the Anthropic Messages API. The SDK makes addresses, authentication and errors; we read the bytes."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anthropic
import httpx2

from app.domain.errors import ProviderError, TooLong
from app.llm.anthropic.render import betas_of, render, render_count
from app.llm.anthropic.wire import AnthropicWire, ErrorEvent
from app.llm.provider import ModelRequest
from app.llm.transport.http import (
    MAX_MESSAGE,
    Adapter,
    classify_failure,
    connection_error,
    decode_token_count,
    http_client,
    retry_after,
)
from app.llm.transport.interceptor import Interceptor
from app.llm.transport.wire import Wire

# The provider's names for failures that a retry cannot help, and for those that it can.
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
_TOO_LARGE = 413
_TOO_LONG = re.compile(r"prompt is too long|model context window|context limit", re.IGNORECASE)


class AnthropicProvider(Adapter):
    name = "anthropic"

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        read_timeout: float | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        transport = http_client(anthropic.DefaultAioHttpClient, interceptors, read_timeout=read_timeout)
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=0, http_client=transport
        )
        super().__init__(self._client)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[httpx2.Response, Wire]]:
        async with self._post("/v1/messages", render(request), request, "text/event-stream") as response:
            yield response, AnthropicWire(response.headers.get("request-id"))

    def _stream_error(self, wire: Wire, status: int) -> ProviderError:
        failure: ErrorEvent = wire.failure
        kind = classify_failure([failure.type], status, None, _PERMANENT, _TRANSIENT)
        request_id = failure.request_id or wire.request_id
        return kind(failure.type, failure.message[:MAX_MESSAGE], request_id=request_id)

    async def count(self, request: ModelRequest) -> int:
        """Counts the tokens. The response is opened as a stream, as those of model calls are."""
        path = "/v1/messages/count_tokens"
        async with self._post(path, render_count(request), request, "application/json") as response:
            return decode_token_count(await response.aread())

    @asynccontextmanager
    async def _post(self, path: str, body: bytes, request: ModelRequest, accept: str) -> AsyncIterator[httpx2.Response]:
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        betas = betas_of(request)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        try:
            stream = await self._client.post(
                f"{path}?beta=true" if betas else path,
                content=body,
                options={"headers": headers},
                cast_to=object,
                stream=True,
                stream_cls=anthropic.AsyncStream[object],
            )
            async with stream:
                yield stream.response
        except anthropic.APIStatusError as error:
            raise _refusal(error) from error
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
            raise connection_error(error) from error


def _refusal(error: anthropic.APIStatusError) -> ProviderError:
    headers = error.response.headers
    body = error.body if isinstance(error.body, dict) else {}
    message = (error.api_message or str(error.body or error.message))[:MAX_MESSAGE]
    if error.status_code == _TOO_LARGE or _TOO_LONG.search(message):
        kind: type[ProviderError] = TooLong
    else:
        should_retry = headers.get("x-should-retry")
        kind = classify_failure([error.type], error.status_code, should_retry, _PERMANENT, _TRANSIENT)
    return kind(
        error.type or f"http_{error.status_code}",
        message,
        request_id=error.request_id or body.get("request_id"),
        retry_after=retry_after(headers),
    )
