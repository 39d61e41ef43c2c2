"""Handlers of the list of models, in the form of OpenAI's API."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.services import services_of
from turnstream.domain.errors import NotFound
from turnstream.extensions.openai_api.objects import Json
from turnstream.libraries.dialects.offered import offered_models
from turnstream.llm.models.catalog import Model


async def list_models(request: Request) -> Response:
    models = [_model(*each) for each in offered_models(services_of(request))]
    return Response(to_json({"object": "list", "data": models}), media_type="application/json")


async def get_model(request: Request) -> Response:
    name = request.path_params["model"]
    for model, provider in offered_models(services_of(request)):
        if name == model.id or name in model.aliases:
            return Response(to_json(_model(model, provider)), media_type="application/json")
    raise NotFound(f"There is no model {name!r} here.", field="model")


def _model(model: Model, provider: str) -> Json:
    return {"id": model.id, "object": "model", "created": 0, "owned_by": provider if model.preset is None else "agents"}
