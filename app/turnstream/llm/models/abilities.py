"""Checks requests against the abilities of their model, so that a call that must fail costs no money."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from turnstream.domain.compaction import EDITS
from turnstream.domain.errors import RequestRefused
from turnstream.domain.output import output_tools, schema_for_model
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import OutputSpec, TurnRequest
from turnstream.kit.strict_schema import is_strict
from turnstream.llm.models.catalog import Model, Models


def within_abilities(
    models: Models, model: Model, request: TurnRequest, output: OutputSpec | None = None
) -> TurnRequest:
    """Returns the request with its output, and with the model's context window, edits and prices in its limits. Raises
    RequestRefused for a feature that the model lacks.
    """
    if output is not None:
        request = _structured(models, request, output)
    # An unknown model is not assumed to support edits by the provider.
    known = model.can or () if request.limits.compaction == "provider" else ()
    edits = tuple(edit for edit in EDITS if edit in known)
    found = {} if request.limits.budget_cost is None else prices_of(models, request.model)
    prices = {name: each for name, each in found.items() if each is not None}
    limits = replace(request.limits, context_window=model.context_window, provider_edits=edits, prices=prices)
    request = replace(request, limits=limits)
    if (request.tools or request.provider_tools) and not model.supports("tools"):
        raise RequestRefused(f"`tools` must be left out: model {model.id} does not support tools.", field="tools")
    return request


def prices_of(models: Models, model: str) -> Mapping[str, Prices | None]:
    """Returns the prices of the models that a turn of this model may use. A budget for the cost needs them."""
    return {name: models.prices(name) for name in (model, *models.fallbacks(model))}


def _structured(models: Models, request: TurnRequest, output: OutputSpec) -> TurnRequest:
    """Adds the tools with which the model submits an output, if it needs any. Attempts are limited instead of tool
    rounds. A partial output has no value, so an output in text is written again after an interruption.
    """
    output = replace(output, native=_is_native(models, request, output))
    tools = output_tools(output)
    taken = [spec.name for spec in request.tools]
    taken += [msgspec.json.decode(tool).get("name") for tool in request.provider_tools]  # any JSON
    for spec in tools:
        if spec.name in taken:
            field = "output.name" if spec.role == "output" else "output.submit_name"
            detail = f"`{field}` must be another name: this turn has another tool {spec.name}."
            raise RequestRefused(detail, field=field)
        taken.append(spec.name)
    recovery = "retry" if output.native else request.limits.recovery
    most = output.max_attempts * output.max_iterations
    limits = replace(request.limits, max_rounds=most, recovery=recovery)
    return replace(request, tools=(*request.tools, *tools), output=output, limits=limits)


def _is_native(models: Models, request: TurnRequest, output: OutputSpec) -> bool:
    """Whether an output is written as text, not with tools. Drafts need tools, and JSON has no field for citations."""
    own_format = (request.params.get("output_config") or {}).get("format") or request.params.get("response_format")
    if output.handler is not None or request.provider_tools or own_format:
        return False
    return is_strict(msgspec.json.decode(schema_for_model(output))) and models.all_support(
        request.model, "structured_output"
    )
