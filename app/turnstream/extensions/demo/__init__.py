"""Answers by a script instead of a model if the server has no key of any provider."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work
from turnstream.libraries.providers.choice import model_choice

if TYPE_CHECKING:
    from turnstream.llm.models.api import CallOptions, ModelApi, ProviderSpec
    from turnstream.llm.provider import OwnedProvider


class DemoSettings(Section):
    demo_delay: float = Field(0.015, ge=0, description="pause between two deltas of the demo model")


def _providers(settings: Settings) -> "Sequence[ModelApi]":
    from turnstream.llm.models.api import ModelApi

    def connect(_: "ProviderSpec", options: "CallOptions") -> "OwnedProvider":
        from turnstream.extensions.demo.provider import DemoProvider

        return DemoProvider(settings.section(DemoSettings).demo_delay, options.interceptors)

    catalog = Path(__file__).with_name("models.toml")
    return [ModelApi("demo", connect, "turnstream.extensions.demo.provider", catalog=catalog, stand_in=True)]


def _work(context: Context) -> Work:
    """Logs a warning if the demo answers."""
    import structlog

    if "demo" in context.models.listed():
        log = structlog.get_logger(__name__)
        log.warning("model.demo", note="no key of a provider is set: answers are a script's, not a model's")
    return Work()


EXTENSION = Extension(
    "demo",
    "a scripted model for a server without keys",
    settings=DemoSettings,
    work=_work,
    providers=_providers,
    model_choice=model_choice,
)
