"""Connects models through Anthropic's Messages API."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.extension import Extension
from turnstream.libraries.providers.choice import model_choice

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


class AnthropicSettings(Section):
    anthropic_api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("ANTHROPIC_API_KEY"),
        description="key for Anthropic's models; without the key of any provider a scripted demo answers",
    )
    anthropic_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices("ANTHROPIC_BASE_URL"),
        description="another base URL of the Anthropic API",
    )


def _connect(spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.libraries.providers.anthropic.provider import AnthropicProvider

    return AnthropicProvider(
        spec.key or "",
        spec.base_url,
        params=spec.params,
        headers=spec.headers,
        max_event_bytes=options.max_event_bytes,
        interceptors=options.interceptors,
        make_calls=options.make_calls,
        client_certificate=spec.client_certificate,
    )


def _providers(_: Settings) -> "Sequence[ModelApi]":
    from turnstream.libraries.providers.anthropic.parameters import OWN_MEMBERS, PARAMETERS
    from turnstream.llm.models.api import ModelApi

    return [
        ModelApi(
            "anthropic",
            _connect,
            "turnstream.libraries.providers.anthropic.provider",
            PARAMETERS,
            own_members=OWN_MEMBERS,
            model_options={"cache": ("5m", "1h", "auto")},
            catalog=Path(__file__).with_name("models.toml"),
        )
    ]


EXTENSION = Extension(
    "anthropic", "models of Anthropic", settings=AnthropicSettings, providers=_providers, model_choice=model_choice
)
