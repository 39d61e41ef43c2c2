"""Reads from a hot standby of the database, if a client accepts an answer that is some seconds old."""

from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.extensions.standby.copy import Standby
    from turnstream.llm.models.catalog import Models


class StandbySettings(Section):
    standby_url: SecretStr | None = Field(
        None,
        description="URL of a hot standby of DATABASE_URL, for [old reads](scaling.md#read-replicas)",
    )
    standby_staleness: float = Field(5, ge=1, le=60, description="highest age of an answer of the standby")


def _standby(settings: Settings) -> "Standby | None":
    """Returns the configured standby. Raises ConfigError."""
    given = settings.section(StandbySettings)
    if given.standby_url is None:
        return None
    from turnstream.extensions.standby.copy import Standby, standby_url

    return Standby(standby_url(settings, given.standby_url), given.standby_staleness, settings)


async def _check(settings: Settings, _models: "Models", ping: bool) -> str:
    """Describes the standby. If the standby does not work, the primary answers."""
    standby = _standby(settings)
    if standby is None:
        return "none"
    return await standby.examined() if ping else "named; --ping compares it with the primary"


EXTENSION = Extension(
    "standby",
    "reads on a hot standby",
    settings=StandbySettings,
    checks={"standby": _check},
    copy=_standby,
)
