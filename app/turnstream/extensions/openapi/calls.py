"""The call that returns the OpenAPI document."""

from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.services import path_for
from turnstream.domain.errors import RequestRefused
from turnstream.extensions.openapi.document import OpenApi, Version


async def get_openapi(request: Request) -> Response:
    """Creates the document at the first request, because at the start it would delay the server."""
    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = OpenApi(state.call_groups, state.model_parameters)
    document: OpenApi = state.openapi
    version = request.query_params.get("version", "3.1")
    if version not in get_args(Version):
        raise RequestRefused("`version` of OpenAPI must be 3.1 or 3.2.", field="version")
    return Response(
        document.text(path_for(request, "") or "/", cast("Version", version)), media_type="application/json"
    )


CALLS = CallGroup(
    (
        Endpoint(
            "GET /openapi.json",
            get_openapi,
            "This document",
            gives="application/json",
            problems=(422,),
            queries=(Query("version", "of OpenAPI: `3.1`, or `3.2`, which has a schema for the items of streams"),),
            open=True,
        ),
    ),
    "Description",
    "This document",
)
