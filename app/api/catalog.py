"""What can be asked for: models and tools."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api.chats import json_response
from app.api.schemas import ModelOut, ModelsOut, ToolOut, ToolsOut
from app.api.services import begin


async def list_models(request: Request) -> Response:
    services, _ = await begin(request)
    default = services.defaults.model
    listed = dict(services.models.listed())
    listed.setdefault(default, services.models.provider_for(default).name)
    models = [ModelOut(id=model, provider=name, default=model == default) for model, name in listed.items()]
    return json_response(ModelsOut(models=models))


async def list_tools(request: Request) -> Response:
    services, _ = await begin(request)
    tools = [
        ToolOut(
            name=spec.name,
            description=spec.description,
            input_schema=msgspec.json.decode(spec.input_schema),
            read_only=spec.read_only,
            approval=approval
            if isinstance(approval := services.toolset.policy(spec.name).approval, str)
            else "by_input",
        )
        for spec in services.toolset.specs()
    ]
    return json_response(ToolsOut(tools=tools))
