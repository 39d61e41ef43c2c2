"""Sends model calls directly, because the provider's SDK would build each request from the beginning."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.llm.models.api import MakeCalls


class DirectCallSettings(Section):
    model_calls: Literal["direct", "sdk"] = Field(
        "direct", description="sender of model calls: see [model calls](settings.md#model-calls)"
    )


def _model_calls(settings: Settings) -> "MakeCalls | None":
    from turnstream.extensions.direct_calls.calls import DirectCalls

    return DirectCalls if settings.section(DirectCallSettings).model_calls == "direct" else None


EXTENSION = Extension(
    "direct_calls",
    "model calls without the building of requests by an SDK",
    settings=DirectCallSettings,
    model_calls=_model_calls,
)
