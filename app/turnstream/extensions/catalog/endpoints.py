"""Handlers that list the models and tools of this server."""

from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.services import services_of
from turnstream.api.views import json_response
from turnstream.extensions.catalog.schemas import ModelOut, ModelsOut, ParameterOut, ToolOut, ToolsOut
from turnstream.libraries.dialects.offered import offered_models
from turnstream.llm.models.catalog import Model
from turnstream.llm.parameters import Parameter


async def list_models(request: Request) -> Response:
    services = services_of(request)
    default_model = services.resolver.models.check(services.resolver.defaults.model)
    models = [
        ModelOut(
            id=model.id,
            provider=provider,
            default=model.id == default_model.id,
            context_window=model.context_window,
            max_output=model.max_output,
            can=None if model.can is None else sorted(model.can),
            prices=asdict(model.prices) if model.prices else None,
            currency=model.currency,
            aliases=list(model.aliases),
            fallbacks=list(model.fallbacks),
            params=[_parameter(parameter, model) for parameter in services.resolver.params.listed(model)],
            agent=None if model.preset is None else model.preset.description,
        )
        for model, provider in offered_models(services)
    ]
    return json_response(ModelsOut(models=models))


def _parameter(parameter: Parameter, model: Model) -> ParameterOut:
    values = parameter.schema()
    if parameter.name == "max_tokens" and model.max_output is not None:
        values["maximum"] = model.max_output
    return ParameterOut(name=parameter.name, description=parameter.description, values=values)


async def list_tools(request: Request) -> Response:
    services = services_of(request)
    tools = [
        ToolOut(
            name=tool.spec.name,
            description=tool.spec.description,
            input_schema=msgspec.json.decode(tool.spec.input_schema),
            read_only=tool.spec.read_only,
            approval=approval if isinstance(approval := tool.policy.approval, str) else "by_input",
            background=tool.policy.background,
        )
        for tool in services.resolver.toolset.tools
    ]
    return json_response(ToolsOut(tools=tools))
