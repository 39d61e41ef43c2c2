"""Adapter to the Anthropic Messages API. The SDK handles addresses, authentication and errors; the adapter reads the
bytes of the response.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import anthropic

from turnstream.domain.errors import ProviderError
from turnstream.kit.offload import offload
from turnstream.libraries.providers.anthropic.parameters import MEMBERS, SAMPLING
from turnstream.libraries.providers.anthropic.render import betas_of, earlier_container, render, render_count
from turnstream.libraries.providers.anthropic.wire import AnthropicWire
from turnstream.libraries.providers.transport.calls import Calls
from turnstream.libraries.providers.transport.failures import LOST, Unanswered, connection_error, provider_error
from turnstream.libraries.providers.transport.http import Adapter, http_client, read_token_count
from turnstream.libraries.providers.transport.response import ModelResponse
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.interceptor import Interceptor
from turnstream.llm.models.api import MakeCalls
from turnstream.llm.provider import MAX_EVENT_BYTES, ModelRequest

# The SDK's clients for other clouds are subclasses of the first client.
SdkClient = anthropic.AsyncAnthropic | anthropic.AsyncAnthropicBedrockMantle | anthropic.AsyncAnthropicVertex
# The last version of the API that accepts sampling parameters. The SDK's default version refuses them for every model.
_WITH_SAMPLING = {"anthropic-version": "2023-06-01"}


class AnthropicProvider(Adapter):
    """Calls the Anthropic Messages API. `params` are parameters that this server accepts in addition to the API's own;
    `headers` are sent with every request. `make` creates the SDK's client.
    """

    name = "anthropic"
    _beta_query = "?beta=true"

    def __init__(
        self,
        api_key: str | None,
        base_url: str | None = None,
        *,
        make: Callable[..., SdkClient] = anthropic.AsyncAnthropic,
        params: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        interceptors: Sequence[Interceptor] = (),
        make_calls: MakeCalls | None = None,
        client_certificate: str | None = None,
    ) -> None:
        network = http_client(
            anthropic.DefaultAioHttpClient,
            interceptors,
            read_timeout=read_timeout,
            client_certificate=client_certificate,
        )
        self._calls = Calls(network) if interceptors or make_calls is None else make_calls(network)
        self._client = make(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            default_headers=headers,
            http_client=self._calls.client,
        )
        self._members = MEMBERS.union(params)
        super().__init__(self._client, max_event_bytes)

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        return self._calls.kept_open()

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        is_open = False
        try:
            async with await self._post_message(request) as response:
                is_open = True
                yield response, AnthropicWire(response.headers.get("request-id"))
                return
        except ProviderError as error:
            if is_open or earlier_container(request) is None or not _may_be_expired(error):
                raise
        fresh = replace(request, earlier_data=None)
        async with await self._post_message(fresh) as response:
            yield response, AnthropicWire(response.headers.get("request-id"))

    async def _post_message(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelResponse]:
        path, body = await self._message(request)
        return self._post(path, body, request, "text/event-stream")

    async def _message(self, request: ModelRequest) -> tuple[str, bytes]:
        """Returns the path and the body of the request."""
        return "/v1/messages", await offload(request.size, render, request, self._members)

    async def _count(self, request: ModelRequest) -> tuple[str, bytes]:
        """Returns the path and the body of a request that counts the tokens of `request`."""
        return "/v1/messages/count_tokens", await offload(request.size, render_count, request, self._members)

    async def count(self, request: ModelRequest) -> int:
        """Counts the tokens. The response is opened as a stream, like the responses of model calls."""
        path, body = await self._count(request)
        async with self._post(path, body, request, "application/json", by_sdk=True) as response:
            return await read_token_count(response)

    @asynccontextmanager
    async def _post(
        self, path: str, body: bytes, request: ModelRequest, accept: str, *, by_sdk: bool = False
    ) -> AsyncIterator[ModelResponse]:
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if SAMPLING.intersection(request.params):
            headers |= _WITH_SAMPLING
        betas = betas_of(request)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
            path += self._beta_query
        post = self._calls.post_by_sdk if by_sdk else self._calls.post
        try:
            async with post(self._sdk, path, headers, body) as response:
                del body
                yield response
        except anthropic.APIStatusError as error:
            failure, refused = error.body, error.response
            raise provider_error(
                failure, error.status_code, headers=refused.headers, request_id=error.request_id
            ) from error
        except (anthropic.APIConnectionError, Unanswered, *LOST) as error:
            raise connection_error(error) from error

    async def _sdk(self, path: str, headers: Mapping[str, str], body: bytes) -> anthropic.AsyncStream[object]:
        return await self._client.post(
            path,
            content=body,
            options={"headers": headers},
            cast_to=object,
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )


def _may_be_expired(error: ProviderError) -> bool:
    """Returns whether an expired container may be the cause. For some expired containers, the API's error does not name
    the container.
    """
    return error.type == "api_error" or "container" in error.message.lower()
