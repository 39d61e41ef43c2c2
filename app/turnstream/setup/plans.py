"""The plans of owners, from settings and extensions."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from turnstream.config import Settings
from turnstream.domain.plans import Plan, Plans
from turnstream.extension import Extension

# Most queued turns of an owner, for each turn of the owner that may run.
_QUEUED_FOR_EACH = 10


def read_plans(
    settings: Settings, extensions: Sequence[Extension], plan_of: Callable[[str], Plan | str | None] | None = None
) -> Plans:
    """Returns the plans of owners. The settings for all owners are the default values of a plan. Raises ConfigError."""
    base = Plan(
        "default",
        running_turns=settings.owner_running_turns or None,
        queued_turns=_QUEUED_FOR_EACH * settings.owner_running_turns or None,
        streams=settings.owner_streams or None,
    )
    found = (each.plans(settings, base) for each in extensions)
    plans = next((each for each in found if each is not None), Plans(base))
    return replace(plans, plan_of=plan_of)
