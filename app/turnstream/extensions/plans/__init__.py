"""Reads the plans of owners from a file. A plan limits what an owner may use."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.domain.plans import Plan, Plans


class PlansSettings(Section):
    plans_file: Path | None = Field(None, description="TOML file of plans: what owners may use")


def _plans(settings: Settings, base: "Plan") -> "Plans | None":
    from turnstream.extensions.plans.file import plans_in

    file = settings.section(PlansSettings).plans_file
    return None if file is None else plans_in(file, base)


EXTENSION = Extension("plans", "plans of owners, in a file", settings=PlansSettings, plans=_plans)
