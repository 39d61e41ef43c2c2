"""Adapters to OpenAI's APIs and compatible servers. The SDK makes addresses, authentication and headers; we read the
bytes.

The shapes of failures differ: an object in `error`, a string in `error`, the object itself, plain text; a name, a
number or a sentence as `code`. The provider's own name for the failure is kept if it has one.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import openai

from app.domain.errors import PermanentError, ProviderError, TooLong, TransientError
from app.llm.openai.chat import render as chat_render
from app.llm.openai.chat.wire import ChatWire
from app.llm.openai.quirks import OPENAI, Quirks
from app.llm.openai.responses import render as responses_render
from app.llm.openai.responses.wire import ResponsesWire
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

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-generation-id")
TOO_LONG = "context_length_exceeded"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
# Names of failures that decide more than their status, which in mid-stream is 200.
_PERMANENT = frozenset(
    {
        TOO_LONG,
        "access_terminated",
        "authentication_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "content_filter",
        "content_policy_violation",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_prompt",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_error",
    }
)
_TRANSIENT = frozenset(
    {
        "api_error",
        "engine_overloaded_error",
        "internal_server_error",
        "overloaded_error",
        "rate_limit_exceeded",
        "server_error",
        "service_unavailable",
        "timeout",
        "tool_use_failed",  # the model wrote a call that the server cannot parse; the next try may be valid
    }
)
_TOO_LONG_TEXT = re.compile(
    r"maximum context length|context (window|length|size)|prompt is too long|maximum prompt length"
    r"|too large for model|exceeds the (model's )?(maximum|available) (input|context)|reduce the length of",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_ANY_MINUTE = re.compile(r"^request too large\b", re.IGNORECASE)


class OpenAIProvider(Adapter):
    """The common part of both APIs. `base_url` ends before the `path`; `headers` are sent with every request;
    `read_timeout` is in seconds.
    """

    path: str
    render: Callable[[ModelRequest, Quirks], bytes]
    wire: type[ChatWire] | type[ResponsesWire]

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        name: str = "openai",
        quirks: Quirks = OPENAI,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self.name = name
        self.quirks = quirks
        self._client = openai.AsyncOpenAI(
            api_key=api_key or "none",  # the SDK requires a key; a server without keys does not read it
            base_url=base_url,
            max_retries=0,
            default_headers=headers,
            http_client=http_client(openai.DefaultAioHttpClient, interceptors, read_timeout=read_timeout),
        )
        super().__init__(self._client)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[httpx2.Response, Wire]]:
        body = self.render(request, self.quirks)
        async with self._post(self.path, body, "text/event-stream") as response:
            yield response, self.wire(_request_id(response.headers), seed=body)

    @asynccontextmanager
    async def _post(self, path: str, body: bytes, accept: str) -> AsyncIterator[httpx2.Response]:
        if self._client.is_closed():
            raise TransientError("connection_error", f"The connections to {self.name} have been closed.")
        try:
            stream = await self._client.post(
                path,
                content=body,
                options={"headers": {"Accept": accept, "Accept-Encoding": "identity"}},
                cast_to=object,
                stream=True,
                stream_cls=openai.AsyncStream[object],
            )
            async with stream:
                yield stream.response
        except openai.APIStatusError as error:
            headers = error.response.headers
            raise provider_error(
                error.body or error.message,
                error.status_code,
                should_retry=headers.get("x-should-retry"),
                request_id=_request_id(headers),
                retry_after=retry_after(headers),
            ) from error
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            raise connection_error(error) from error

    def _stream_error(self, wire: Wire, status: int) -> ProviderError:
        return provider_error(wire.failure, status, request_id=wire.request_id)


class OpenAIChatProvider(OpenAIProvider):
    """Chat Completions."""

    path = "/chat/completions"
    render = staticmethod(chat_render.render)
    wire = ChatWire


class OpenAIResponsesProvider(OpenAIProvider):
    path = "/responses"
    render = staticmethod(responses_render.render)
    wire = ResponsesWire

    async def count(self, request: ModelRequest) -> int:
        body = responses_render.render_count(request, self.quirks)
        async with self._post(f"{self.path}/input_tokens", body, "application/json") as response:
            return decode_token_count(await response.aread())


def _request_id(headers: httpx2.Headers) -> str | None:
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


def provider_error(
    failure: object,
    status: int,
    *,
    should_retry: str | None = None,
    request_id: str | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    """Returns the error for `failure`, a decoded body or event, or its text; `status` is that of the response."""
    members = _members(failure)
    status = _status(members, status)
    texts = (members.get(member) for member in ("message", "detail", "msg"))
    message = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), None)
    if message is None:
        message = msgspec.json.encode(failure).decode() if failure else "(the provider gave no reason)"
    names = (members.get(member) for member in ("code", "type"))
    name = next((name for name in names if isinstance(name, str) and _NAME.fullmatch(name)), None)
    if name is None:
        name = f"http_{status}" if status != 200 else "provider_error"
    if status in {200, 400, 413, 422} and _TOO_LONG_TEXT.search(message):
        name = TOO_LONG
    kind: type[ProviderError]
    if name == TOO_LONG:
        kind = TooLong
    elif (status == 429 or name == "rate_limit_exceeded") and _TOO_LARGE_FOR_ANY_MINUTE.search(message):
        kind = PermanentError  # larger than the limit of a minute: no wait can help
    else:
        kind = classify_failure([name, members.get("type")], status, should_retry, _PERMANENT, _TRANSIENT)
    return kind(name, message[:MAX_MESSAGE], request_id=request_id, retry_after=retry_after)


def _members(failure: object) -> Mapping[str, Any]:
    if not isinstance(failure, Mapping):
        return {"message": failure} if isinstance(failure, str) else {}
    inner = failure.get("error")
    if isinstance(inner, Mapping):
        return inner
    return {**failure, "message": inner} if isinstance(inner, str) else failure


def _status(members: Mapping[str, Any], status: int) -> int:
    """Returns the status; in mid-stream it may be a member of the failure."""
    if status != 200:
        return status
    for name in ("status_code", "status", "code"):
        found = members.get(name)
        number = int(found) if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()) else 0
        if 400 <= number < 600:
            return number
    return status
