"""Handlers of the catalog: the models and tools of this server."""

from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api.schemas.responses import ModelOut, ModelsOut, ToolOut, ToolsOut
from app.api.services import begin
from app.api.views import json_response
from app.llm.models.catalog import Model


async def list_models(request: Request) -> Response:
    services, _ = await begin(request)
    default = services.resolver.defaults.model
    listed = dict(services.resolver.models.listed())
    default_model = services.resolver.models.check(default)
    listed.setdefault(default_model.id, (default_model, services.resolver.models.provider_for(default).name))
    models = [_model_out(model, provider, default=model.id == default_model.id) for model, provider in listed.values()]
    return json_response(ModelsOut(models=models))


def _model_out(model: Model, provider: str, *, default: bool) -> ModelOut:
    return ModelOut(
        id=model.id,
        provider=provider,
        default=default,
        context_window=model.context_window,
        max_output=model.max_output,
        can=None if model.can is None else sorted(model.can),
        prices=asdict(model.prices) if model.prices else None,
        aliases=list(model.aliases),
        fallbacks=list(model.fallbacks),
    )


async def list_tools(request: Request) -> Response:
    services, _ = await begin(request)
    tools = [
        ToolOut(
            name=spec.name,
            description=spec.description,
            input_schema=msgspec.json.decode(spec.input_schema),
            read_only=spec.read_only,
            approval=approval
            if isinstance(approval := services.resolver.toolset.policy(spec.name).approval, str)
            else "by_input",
        )
        for spec in services.resolver.toolset.specs()
    ]
    return json_response(ToolsOut(tools=tools))
