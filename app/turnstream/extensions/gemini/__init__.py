"""Models of Google's Gemini API, from Google AI and Vertex AI."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension
from turnstream.libraries.extras import need
from turnstream.libraries.providers.choice import model_choice

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


class GeminiSettings(Section):
    gemini_api_key: SecretStr | None = Field(
        None, validation_alias=AliasChoices("GEMINI_API_KEY"), description="key for Google's models"
    )


def _has_own_credentials(spec: "ProviderSpec") -> bool:
    return spec.quirks != "vertex" or spec.key is not None or "authorization" in map(str.lower, spec.headers)


def _verify(spec: "ProviderSpec") -> None:
    if spec.quirks == "vertex" and spec.base_url is None:
        raise ConfigError(f"`base_url` of [providers.{spec.name}] must be set: that of Vertex AI names the project.")
    if not _has_own_credentials(spec):
        need("google.auth", "google", f"The provider {spec.name} of the file of models, which has no `key`,")


def _connect(spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.extensions.gemini.provider import GeminiProvider

    credentials = None
    if not _has_own_credentials(spec):
        from turnstream.extensions.gemini.credentials import GoogleTokens

        credentials = GoogleTokens().headers
    return GeminiProvider(
        spec.key or "",
        spec.base_url,
        name=spec.name,
        vertex=spec.quirks == "vertex",
        credentials=credentials,
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
            verify=_verify,
        )
    ]


EXTENSION = Extension(
    "gemini", "models of Google's Gemini API", settings=GeminiSettings, providers=_providers, model_choice=model_choice
)
