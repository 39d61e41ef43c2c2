"""Guardrails that the operator declares: patterns, requests to a server, prompts to a model, a moderation API."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.llm.models.catalog import Models


class GuardrailSettings(Section):
    guardrails_file: Path | None = Field(None, description="TOML file of guardrails: checks of texts")


async def _check(settings: Settings, models: "Models", _: bool) -> str:
    from turnstream.extensions.guardrails.declared import read_guardrails

    declared = read_guardrails(settings.section(GuardrailSettings).guardrails_file)
    for each in declared:
        each.check_model(models)
    return ", ".join(each.name for each in declared) or "there are none"


def _work(context: Context) -> Work:
    from turnstream.extensions.guardrails.declared import guards_of, read_guardrails

    declared = read_guardrails(context.settings.section(GuardrailSettings).guardrails_file)
    return guards_of(declared, context) if declared else Work()


EXTENSION = Extension(
    "guardrails",
    "checks of messages, results of tools and answers",
    settings=GuardrailSettings,
    checks={"guardrails": _check},
    work=_work,
)
