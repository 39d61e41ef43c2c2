"""Models of Google's Gemini API, at Google AI and at Vertex AI."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


class GeminiSettings(Section):
    gemini_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("GEMINI_API_KEY"), description="key for Google's models"
    )


def _connect(spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.extensions.gemini.provider import GeminiProvider

    return GeminiProvider(
        spec.key or "",
        spec.base_url,
        name=spec.name,
        vertex=spec.quirks == "vertex",
        params=spec.params,
        headers=spec.headers,
        max_event_bytes=options.max_event_bytes,
        interceptors=options.interceptors,
        client_certificate=spec.client_certificate,
    )


def _providers(_: Settings) -> "Sequence[ModelApi]":
    from turnstream.extensions.gemini.parameters import OWN_MEMBERS, PARAMETERS
    from turnstream.llm.models.api import ModelApi

    return [
        ModelApi(
            "gemini",
            _connect,
            "turnstream.extensions.gemini.provider",
            PARAMETERS,
            quirks={"google": PARAMETERS, "vertex": PARAMETERS},
            own_members=OWN_MEMBERS,
            catalog=Path(__file__).with_name("models.toml"),
            prefills=False,
        )
    ]


EXTENSION = Extension("gemini", "models of Google's Gemini API", settings=GeminiSettings, providers=_providers)
