"""Adapters to Anthropic's Messages API in clouds. The SDK finds credentials, refreshes tokens and signs requests."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import quote

import anthropic
from anthropic._constants import ANTHROPIC_API_VERSION

from turnstream.domain.errors import AccountRefused, ConfigError, TransientError
from turnstream.extensions.anthropic_clouds.options import PACKAGES, values_of
from turnstream.kit.offload import offload
from turnstream.libraries.providers.anthropic.parameters import SAMPLING
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider, SdkClient
from turnstream.libraries.providers.anthropic.render import render, render_count
from turnstream.libraries.providers.transport.calls import Calls
from turnstream.llm.models.api import CallOptions, ProviderSpec
from turnstream.llm.provider import ModelRequest, report_account

# Vertex's name for the API version that has sampling parameters.
_WITH_SAMPLING = "vertex-2023-10-16"
_ENTRA_SCOPE = "https://ai.azure.com/.default"
# Class names of exceptions that the credentials' packages raise and that may be transient.
_PASSING = frozenset({"ConnectionError", "HTTPClientError", "ServiceRequestError", "TransportError"})
# For each extra, the module and the base class of the exceptions that the package raises.
_EXCEPTIONS = {
    "aws": ("botocore.exceptions", "BotoCoreError"),
    "azure": ("azure.core.exceptions", "AzureError"),
    "google": ("google.auth.exceptions", "GoogleAuthError"),
}

Values = Mapping[str, str | None]
Make = Callable[..., SdkClient]


class CloudProvider(AnthropicProvider):
    """Calls Claude models in a cloud. `failures` are the exceptions that the credentials' package raises."""

    def __init__(self, *, name: str, failures: tuple[type[Exception], ...] = (), **common: Any) -> None:
        self.name = name
        # The SDK raises RuntimeError, or its own exception, if credentials are missing.
        self._failures: tuple[type[Exception], ...] = (*failures, RuntimeError, anthropic.AnthropicError)
        super().__init__(None, **common)

    async def _sdk(self, path: str, headers: Mapping[str, str], body: bytes) -> anthropic.AsyncStream[object]:
        try:
            return await super()._sdk(path, headers, body)
        except anthropic.APIError:
            raise
        except self._failures as error:
            names = {kind.__name__ for kind in type(error).__mro__}
            if names & _PASSING or getattr(error, "retryable", False):
                raise TransientError("connection_error", "The server of the cloud's credentials failed.") from error
            raise _refused("authentication_error", f"The credentials of {self.name} are not usable: {error}") from error


class VertexProvider(CloudProvider):
    """Calls Claude models at Vertex, where the path has the model and the body has the version. The SDK could move
    these members, but it would copy the whole conversation.
    """

    _beta_query = ""

    def __init__(self, parent: str, **common: Any) -> None:
        self._parent = parent
        super().__init__(**common)

    async def _message(self, request: ModelRequest) -> tuple[str, bytes]:
        path = f"{self._parent}/{quote(request.model, safe='@')}:streamRawPredict"
        return path, await offload(request.size, render, request, self._members, _version(request))

    async def _count(self, request: ModelRequest) -> tuple[str, bytes]:
        path = f"{self._parent}/count-tokens:rawPredict"
        return path, await offload(request.size, render_count, request, self._members, _version(request))


def _version(request: ModelRequest) -> str:
    return _WITH_SAMPLING if SAMPLING.intersection(request.params) else ANTHROPIC_API_VERSION


def connect(spec: ProviderSpec, options: CallOptions) -> AnthropicProvider:
    """Returns the adapter. Raises AccountRefused if the SDK cannot use the provider's settings."""
    try:
        return _connected(spec, options)
    except (ConfigError, ValueError, anthropic.AnthropicError) as error:
        raise _refused("configuration", f"[providers.{spec.name}] is not usable: {error}") from error


def _refused(type: str, message: str) -> AccountRefused:
    refused = AccountRefused(type, message)
    report_account(refused)
    return refused


def _connected(spec: ProviderSpec, options: CallOptions) -> AnthropicProvider:
    values = values_of(spec)
    common: dict[str, Any] = {
        "name": spec.name,
        "make": _CLIENTS[spec.api.name](spec.key, values),
        "failures": _exceptions(spec.api.name) if spec.key is None else (),
        "base_url": spec.base_url,
        "params": spec.params,
        "headers": spec.headers,
        "max_event_bytes": options.max_event_bytes,
        "interceptors": options.interceptors,
        # A cloud's token expires within the hour, so the SDK refreshes it before each call. Keys do not change.
        "make_calls": Calls if spec.key is None else options.make_calls,
        "client_certificate": spec.client_certificate,
    }
    if spec.api.name != "anthropic-vertex":
        return CloudProvider(**common)
    project, region = (quote(values[name] or "", safe="") for name in ("project", "region"))
    return VertexProvider(f"/projects/{project}/locations/{region}/publishers/anthropic/models", **common)


def _exceptions(api: str) -> tuple[type[Exception], ...]:
    module, name = _EXCEPTIONS[PACKAGES[api][1]]
    return (getattr(import_module(module), name),)


def _aws(key: str | None, values: Values) -> Make:
    return _without_key(
        anthropic.AsyncAnthropicAWS,
        api_key=key,
        aws_region=values["region"],
        aws_profile=values["profile"],
        workspace_id=values["workspace"],
    )


def _bedrock(key: str | None, values: Values) -> Make:
    return _without_key(
        anthropic.AsyncAnthropicBedrockMantle,
        api_key=key,
        aws_region=values["region"],
        aws_profile=values["profile"],
    )


def _foundry(key: str | None, values: Values) -> Make:
    return _without_key(
        anthropic.AsyncAnthropicFoundry,
        api_key=key,
        azure_ad_token_provider=_entra_tokens() if key is None else None,
        **({"resource": values["resource"]} if values["resource"] else {}),
    )


def _google_cloud(key: str | None, values: Values) -> Make:
    return _without_key(
        anthropic.AsyncAnthropicGoogleCloud,
        project=values["project"],
        location=values["location"],
        workspace_id=values["workspace"],
        token_provider=None if key is None else lambda: key,
    )


def _vertex(key: str | None, values: Values) -> Make:
    return _without_key(
        anthropic.AsyncAnthropicVertex,
        region=values["region"],
        project_id=values["project"],
        access_token=key,
    )


_CLIENTS: Mapping[str, Callable[[str | None, Values], Make]] = {
    "anthropic-aws": _aws,
    "anthropic-bedrock": _bedrock,
    "anthropic-foundry": _foundry,
    "anthropic-google-cloud": _google_cloud,
    "anthropic-vertex": _vertex,
}


def _without_key(client: Callable[..., SdkClient], **own: Any) -> Make:
    """Returns a function that makes the client with its `own` arguments, without the common `api_key`."""

    def make(*, api_key: None, **common: Any) -> SdkClient:
        assert api_key is None
        return client(**common, **own)

    return make


def _entra_tokens() -> Callable[[], Any]:
    """Returns a function that returns tokens of Microsoft's Entra ID. The SDK caches and refreshes these tokens."""
    from azure.identity import DefaultAzureCredential, get_bearer_token_provider  # noqa: PLC0415

    token = get_bearer_token_provider(DefaultAzureCredential(), _ENTRA_SCOPE)
    return partial(asyncio.to_thread, token)
