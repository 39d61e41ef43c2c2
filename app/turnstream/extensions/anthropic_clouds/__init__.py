"""Connects Claude models in the clouds of Google, Amazon and Microsoft. Each cloud has its own addresses and
credentials.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension
from turnstream.libraries.extras import need
from turnstream.libraries.providers.choice import model_choice

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


def _verify(spec: "ProviderSpec") -> None:
    from turnstream.extensions.anthropic_clouds.options import PACKAGES, values_of

    values_of(spec)
    if spec.key is None:
        package, extra = PACKAGES[spec.api.name]
        need(package, extra, f"The provider {spec.name} of the file of models, which has no `key`,")


def _connect(spec: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
    from turnstream.extensions.anthropic_clouds.provider import connect

    return connect(spec, options)


def _providers(_: Settings) -> "Sequence[ModelApi]":
    from turnstream.extensions.anthropic_clouds.options import OPTIONS
    from turnstream.libraries.providers.anthropic.parameters import OWN_MEMBERS, PARAMETERS
    from turnstream.llm.models.api import ModelApi

    return [
        ModelApi(
            name,
            _connect,
            "turnstream.extensions.anthropic_clouds.provider",
            PARAMETERS,
            own_members=OWN_MEMBERS | {"anthropic_version"},
            options=tuple(OPTIONS[name]),
            verify=_verify,
        )
        for name in OPTIONS
    ]


EXTENSION = Extension(
    "anthropic_clouds",
    "Claude models at Google Cloud, AWS and Microsoft Foundry",
    providers=_providers,
    model_choice=model_choice,
)
