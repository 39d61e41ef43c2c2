"""Adapter to the Anthropic Messages API. The SDK makes addresses, authentication and errors; we read the bytes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anthropic
import httpx2

from app.kit.offload import offload
from app.llm.anthropic.render import betas_of, render, render_count
from app.llm.anthropic.wire import AnthropicWire
from app.llm.provider import ModelRequest
from app.llm.transport.failures import LOST, connection_error, provider_error
from app.llm.transport.http import MAX_EVENT_BYTES, Adapter, decode_token_count, http_client
from app.llm.transport.interceptor import Interceptor
from app.llm.transport.wire import Wire


class AnthropicProvider(Adapter):
    name = "anthropic"

    def __init__(
        self,
        api_key: str,
        base_url: str | None = None,
        *,
        read_timeout: float | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        transport = http_client(anthropic.DefaultAioHttpClient, interceptors, read_timeout=read_timeout)
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=0, http_client=transport
        )
        super().__init__(self._client, max_event_bytes)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[httpx2.Response, Wire]]:
        body = await offload(request.size, render, request)
        async with self._post("/v1/messages", body, request, "text/event-stream") as response:
            yield response, AnthropicWire(response.headers.get("request-id"))

    async def count(self, request: ModelRequest) -> int:
        """Counts the tokens. The response is opened as a stream, as those of model calls are."""
        path = "/v1/messages/count_tokens"
        body = await offload(request.size, render_count, request)
        async with self._post(path, body, request, "application/json") as response:
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
            failure, refused = error.body, error.response
            raise provider_error(
                failure, error.status_code, headers=refused.headers, request_id=error.request_id
            ) from error
        except (anthropic.APIConnectionError, *LOST) as error:
            raise connection_error(error) from error
