"""Digests of those parts of a replica's configuration that affect turns. They reveal replicas that differ."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

from pydantic import SecretStr

from turnstream.setup.parts import Parts
from turnstream.storage.rows import OWNER_RUNNING_TURNS, REPLICA_TURNS

# A short digest matches many values, so nobody can find a secret by trial.
_DIGITS = 8


def digests_of(parts: Parts) -> Mapping[str, str]:
    """Returns a digest for each part of the configuration. The keys are words for an operator (`tools`, `prices`). Two
    values are plain numbers: the most running turns of an owner (empty without a limit), and of the replica.
    """
    settings, models = parts.settings, parts.models.listed()
    observed: dict[str, object] = {
        "models": [(provider, model.upstream, model.fallbacks, name) for name, (model, provider) in models.items()],
        "prices": [(name, model.prices) for name, (model, _) in models.items()],
        "tools": [(tool.spec, tool.policy) for tool in parts.toolset.own],
        "validators and handlers": (parts.toolset.outputs.validators, parts.toolset.outputs.handlers),
        "hooks": [type(hook) for hook in parts.hooks],
        "prompts": (settings.system_prompt, presets) if (presets := parts.toolset.presets) else settings.system_prompt,
        "plans": parts.plans,
    }
    for section in (each.settings for each in parts.extensions if each.settings is not None):
        values = settings.section(section)
        observed |= {name: getattr(values, field) for field, name in section.observed.items()}
    digests = {kind: sha256(_text(value).encode()).hexdigest()[:_DIGITS] for kind, value in observed.items()}
    limits = {OWNER_RUNNING_TURNS: parts.plans.default.running_turns or "", REPLICA_TURNS: settings.concurrent_turns}
    return digests | {name: str(value) for name, value in limits.items()}


def _text(value: Any) -> str:
    """Returns a text that is equal for equal values in every process. Functions and classes become their names."""
    match value:
        case SecretStr():
            return value.get_secret_value()
        case str() | bytes() | int() | float() | None:
            return repr(value)
        case Mapping():
            return str(sorted((_text(key), _text(each)) for key, each in value.items()))
        case Set():
            return str(sorted(map(_text, value)))
        case Sequence():
            return str(list(map(_text, value)))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return str([(field.name, _text(getattr(value, field.name))) for field in fields(value)])
        case _:
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
