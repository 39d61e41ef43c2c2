"""Chooses models for extensions that offer providers. Imports the modules of models only when it chooses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.extension import ModelChoice


def model_choice(settings: Settings, extensions: Sequence[Extension]) -> "ModelChoice":
    from turnstream.libraries.providers.models import ModelsOfSettings  # noqa: PLC0415

    return ModelsOfSettings(settings, extensions)
