"""Models that are called through OpenAI's two APIs: the models of OpenAI, and of compatible servers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.extension import Extension
from turnstream.libraries.extras import need
from turnstream.libraries.providers.choice import model_choice

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


class OpenAISettings(Section):
    openai_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("OPENAI_API_KEY"), description="key for OpenAI's models"
    )
    openai_base_url: str | None = Field(
        None,
        validation_alias=AliasChoices("OPENAI_BASE_URL"),
        description="base URL of another server with OpenAI's API",
    )


# The values of a model's options: `background` makes the provider finish an answer that has no reader, and `transport`
# is the connection of the model's calls.
_OPTIONS: dict[str, tuple[bool | str, ...]] = {"background": (False, True), "transport": ("http", "websocket")}


def _check(provider: str) -> None:
    need("openai", "openai", f"The provider {provider} of the file of models")


def _connect(api: str, spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
    from turnstream.extensions.openai.quirks import quirks_of

    return (OpenAIChatProvider if api == "openai-chat" else OpenAIResponsesProvider)(
        spec.key or "",
        spec.base_url,
        name=spec.name,
        quirks=quirks_of(spec.quirks, spec.params),
        headers=spec.headers,
        max_event_bytes=options.max_event_bytes,
        interceptors=options.interceptors,
        make_calls=options.make_calls,
        client_certificate=spec.client_certificate,
    )


def _providers(_: Settings) -> "Sequence[ModelApi]":
    from turnstream.extensions.openai.parameters import (
        CHAT,
        OWN_MEMBERS,
        RESPONSES,
        chat_parameters,
        responses_parameters,
    )
    from turnstream.extensions.openai.quirks import QUIRKS
    from turnstream.extensions.openai.think_tags import ThinkTagFilter
    from turnstream.llm.models.api import ModelApi

    tables = (("openai-chat", CHAT, chat_parameters), ("openai-responses", RESPONSES, responses_parameters))
    return [
        ModelApi(
            name,
            partial(_connect, name),
            "turnstream.extensions.openai.provider",
            parameters,
            quirks={quirks: taken(QUIRKS[quirks]) for quirks in QUIRKS},
            own_members=OWN_MEMBERS,
            catalog=Path(__file__).with_name("models.toml") if name == "openai-chat" else None,
            check=_check,
            prefills=name == "openai-chat",
            without_tags=ThinkTagFilter,
            model_options=_OPTIONS if name == "openai-responses" else {},
        )
        for name, parameters, taken in tables
    ]


EXTENSION = Extension(
    "openai",
    "models of OpenAI and of compatible servers",
    settings=OpenAISettings,
    providers=_providers,
    model_choice=model_choice,
)
