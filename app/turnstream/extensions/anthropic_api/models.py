"""Handles requests for the list of models, in the form of Anthropic's API."""

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.reading import limit_of
from turnstream.api.services import services_of
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.extensions.anthropic_api.schemas import Json
from turnstream.libraries.dialects.offered import offered_models
from turnstream.llm.models.catalog import Model

_EPOCH = datetime.fromtimestamp(0, UTC).isoformat().replace("+00:00", "Z")  # models have no dates on this server


async def list_models(request: Request) -> Response:
    models = [_model(model) for model, _ in offered_models(services_of(request))]
    limit, ids = limit_of(request, 20, 1000), [model["id"] for model in models]
    query = request.query_params
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in ids:
            raise RequestRefused(f"`{name}` must be the id of a model of this list.", field=name)
    first = ids.index(query["after_id"]) + 1 if "after_id" in query else 0
    last = len(ids)
    if "before_id" in query:
        last = ids.index(query["before_id"])
        first = max(first, last - limit)
    page = models[first:last][:limit]
    more = first > 0 if "before_id" in query else first + limit < last
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return Response(to_json({"data": page, "has_more": more, **ends}), media_type="application/json")


async def get_model(request: Request) -> Response:
    name = request.path_params["model"]
    for model, _ in offered_models(services_of(request)):
        if name == model.id or name in model.aliases:
            return Response(to_json(_model(model)), media_type="application/json")
    raise NotFound(f"There is no model {name!r} here.", field="model")


def _model(model: Model) -> Json:
    sizes = {"max_input_tokens": model.context_window, "max_tokens": model.max_output}
    name = model.id if model.preset is None else f"{model.id} (agent)"
    return {"id": model.id, "type": "model", "display_name": name, "created_at": _EPOCH, **sizes}
