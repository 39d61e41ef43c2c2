"""A dialect: OpenAI's API under /v1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.openai_api.calls import CALLS

    return (CALLS,)


def _connect(spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.extensions.openai_api.embeddings import EmbeddingsProvider

    return EmbeddingsProvider(spec, options)


def _providers(_: Settings) -> "Sequence[ModelApi]":
    from turnstream.llm.models.api import ModelApi

    return [ModelApi("openai-embeddings", _connect, parameters=())]


EXTENSION = Extension("openai_api", "OpenAI's API under /v1", calls=_calls, providers=_providers)
