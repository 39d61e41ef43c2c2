"""Model parameters of turns and chats, validated against the model and the operator's permissions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import ValidationError

from turnstream.api.http.errors import Invalid
from turnstream.api.http.validation import refusals
from turnstream.llm.models.catalog import Model, Models
from turnstream.llm.parameters import AllowedParams, Parameter

log = structlog.get_logger(__name__)


# For each parameter that contains a maximum of output tokens, the member with the maximum.
_TOKENS = {"thinking": "budget_tokens", "reasoning": "max_tokens"}


@dataclass(frozen=True, slots=True)
class ParamRules:
    """Validates parameters. A turn may set token maximums up to `max_tokens`, for its answer or for thinking."""

    models: Models
    allowed: AllowedParams = field(default_factory=AllowedParams)
    max_tokens: int | None = None

    def listed(self, model: Model) -> Sequence[Parameter]:
        """Returns the parameters that turns of this server can set for the model."""
        return [parameter for parameter in self.models.parameters(model.id) if self.allowed.shows(parameter)]

    def checked(self, model: Model, given: Mapping[str, Any], place: str = "params") -> dict[str, Any]:
        """Returns the validated parameters for the model. A null stays, because it removes an inherited parameter.
        `place` is the field with the parameters. Raises Invalid with a sentence for each wrong parameter.
        """
        if not given:
            return {}
        known = {parameter.name: parameter for parameter in self.models.parameters(model.id)}
        checked: dict[str, Any] = {}
        errors: list[dict[str, str]] = []
        for name, value in given.items():
            if value is None:
                checked[name] = None
            elif name not in known:
                errors.append(_sentence(f"{place}.{name}", self._why_unknown(model, name)))
            elif not self.allowed.shows(known[name]):
                reason = "must be left out: the operator of this server has not allowed it (TURNSTREAM_PARAMS_ALLOW)"
                errors.append(_sentence(f"{place}.{name}", reason))
            else:
                try:
                    checked[name] = known[name].validated(value)
                except ValidationError as error:
                    errors += refusals(known[name].type, error, (*place.split("."), name))
                else:
                    errors += self._objections(model, known[name], checked[name], place)
        if errors:
            raise Invalid(errors)
        return checked

    def fitting(self, model: Model, inherited: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters of a chat, or of an earlier turn, that the model accepts and the operator allows.
        Other parameters are omitted: they may have been set for another model.
        """
        if not inherited:
            return {}
        known = {parameter.name: parameter for parameter in self.models.parameters(model.id)}
        fitting = self.models.fitting(model.id, inherited)
        kept = {
            name: value
            for name, value in fitting.items()
            if self.allowed.allows(known[name], value) and self._above(name, value) is None
        }
        if left_out := sorted(inherited.keys() - kept.keys()):
            log.info("params.left_out", model=model.id, params=left_out)
        return kept

    def _why_unknown(self, model: Model, name: str) -> str:
        why = self.models.refusal(model.id, name) or "the model does not take it"
        names = ", ".join(f"`{parameter.name}`" for parameter in self.listed(model)) or "none"
        return f"must be left out: {why}; parameters of {model.id} are {names}"

    def _above(self, name: str, value: Any) -> str | None:
        """Returns the field of the parameter that requests more tokens than the operator allows, or None."""
        if name in _TOKENS and isinstance(value, Mapping):
            name, value = f"{name}.{_TOKENS[name]}", value.get(_TOKENS[name])
        elif name != "max_tokens":
            return None
        above = self.max_tokens is not None and isinstance(value, int) and value > self.max_tokens
        return name if above else None

    def _objections(self, model: Model, parameter: Parameter, value: Any, place: str) -> Sequence[dict[str, str]]:
        if not self.allowed.allows(parameter, value):
            reason = "must be a value that the operator of this server has allowed (TURNSTREAM_PARAMS_ALLOW)"
            return [_sentence(f"{place}.{parameter.name}", reason)]
        if (place_above := self._above(parameter.name, value)) is not None:
            reason = f"must be at most {self.max_tokens:,}, the limit of this server"
            return [_sentence(f"{place}.{place_above}", reason)]
        objection = model.objection(parameter.name, value)
        return [_sentence(f"{place}.{objection[0]}", objection[1])] if objection else []


def _sentence(field: str, predicate: str) -> dict[str, str]:
    return {"field": field, "message": f"`{field}` {predicate}."}
