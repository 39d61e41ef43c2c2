"""Handlers for operations: liveness, readiness, metrics."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.api.http.errors import problem
from app.api.services import services_of
from app.storage.database import Statement

SELECT_ONE = Statement("SELECT 1")


async def healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """Raises StorageUnavailable, which becomes a 503."""
    services = services_of(request)
    if not services.is_ready():
        return problem(503, "Not ready", "This server is stopping.", headers={"Retry-After": "1"})
    await services.storage.database.row(SELECT_ONE)
    return PlainTextResponse("ready\n")


async def metrics(_request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
