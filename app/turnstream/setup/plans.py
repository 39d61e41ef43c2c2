"""The plans of owners, from the file of plans and the settings."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.plans import KEPT, RATES, Plan, Plans
from turnstream.kit.requirements import requirement

# Turns of an owner that may wait in the queue, for each that may run.
_QUEUED_FOR_EACH = 10


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    default: str | None = None
    plans: dict[str, dict[str, Annotated[float, Field(gt=0)]]] = {}
    owners: dict[str, str] = {}


def read_plans(settings: Settings, plan_of: Callable[[str], Plan | str | None] | None = None) -> Plans:
    """The settings for every owner are what a plan does not name. Raises ConfigError with file, table and key."""
    base = Plan(
        "default",
        running_turns=settings.owner_running_turns or None,
        queued_turns=_QUEUED_FOR_EACH * settings.owner_running_turns or None,
        streams=settings.owner_streams or None,
    )
    if settings.plans_file is None:
        return Plans(base, plan_of=plan_of)
    try:
        with settings.plans_file.open("rb") as stream:
            found = _File.model_validate(tomllib.load(stream))
        named = {name: _plan(name, table, base) for name, table in found.plans.items()}
        chosen = {f"owners.{owner}": name for owner, name in found.owners.items()}
        chosen |= {} if found.default is None else {"default": found.default}
        for place, name in chosen.items():
            if name not in named:
                raise ValueError(f"{place} must be one of the plans in the file, not {name!r}")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place} {requirement(first['type'], first.get('ctx'))}"
        raise ConfigError(f"TURNSTREAM_PLANS_FILE: {settings.plans_file}: {what}.") from None
    except (OSError, ValueError) as error:  # TOML that cannot be read is a ValueError too
        raise ConfigError(f"TURNSTREAM_PLANS_FILE: {settings.plans_file}: {error}.") from None
    return Plans(base if found.default is None else named[found.default], named, found.owners, plan_of)


def _plan(name: str, table: Mapping[str, float], base: Plan) -> Plan:
    """Raises ValueError."""
    for limit, amount in table.items():
        if limit not in {*RATES, *KEPT}:
            raise ValueError(f"plans.{name}.{limit} is no limit; those are {', '.join((*RATES, *KEPT))}")
        if not limit.startswith("cost_") and amount != int(amount):
            raise ValueError(f"plans.{name}.{limit} must be a whole number, not {amount:g}")
    kept = {limit: int(table[limit]) for limit in KEPT if limit in table}
    return replace(base, name=name, rates={rate: table[rate] for rate in RATES if rate in table}, **kept)
