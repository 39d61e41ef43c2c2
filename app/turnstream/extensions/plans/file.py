"""Reads the file of plans."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.domain.errors import ConfigError
from turnstream.domain.plans import KEPT, RATES, Plan, Plans
from turnstream.kit.requirements import requirement


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    default: str | None = None
    plans: dict[str, dict[str, Annotated[float, Field(gt=0)]]] = {}
    owners: dict[str, str] = {}


def plans_in(file: Path, base: Plan) -> Plans:
    """Returns the plans in `file`. A limit that a plan omits is the limit of `base`. Raises ConfigError, which names
    the file, the table and the key.
    """
    try:
        with file.open("rb") as stream:
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
        raise ConfigError(f"TURNSTREAM_PLANS_FILE: {file}: {what}.") from None
    except (OSError, ValueError) as error:  # invalid TOML is a ValueError too
        raise ConfigError(f"TURNSTREAM_PLANS_FILE: {file}: {error}.") from None
    return Plans(base if found.default is None else named[found.default], named, found.owners)


def _plan(name: str, table: Mapping[str, float], base: Plan) -> Plan:
    """Returns the plan in a table. Raises ValueError."""
    for limit, amount in table.items():
        if limit not in {*RATES, *KEPT}:
            raise ValueError(f"plans.{name}.{limit} is no limit; those are {', '.join((*RATES, *KEPT))}")
        if not limit.startswith("cost_") and amount != int(amount):
            raise ValueError(f"plans.{name}.{limit} must be a whole number, not {amount:g}")
    kept = {limit: int(table[limit]) for limit in KEPT if limit in table}
    return replace(base, name=name, rates={rate: table[rate] for rate in RATES if rate in table}, **kept)
