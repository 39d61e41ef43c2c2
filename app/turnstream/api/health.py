"""Handlers of health checks: liveness and readiness."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from turnstream.api.http.errors import problem
from turnstream.api.neighbours import is_from_neighbour
from turnstream.api.services import services_of
from turnstream.domain.errors import StorageUnavailable
from turnstream.storage.database import OF_REQUEST


async def healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """Checks whether the server is ready. Raises StorageUnavailable, which becomes a 503, if Postgres does not answer
    within two seconds. With `exclude=postgres` only a stopping server is not ready, because streams continue without
    Postgres, and all replicas lose Postgres at once.
    """
    services = services_of(request)
    neighbours = None if is_from_neighbour(request) else services.neighbours
    if not services.is_ready() and not (neighbours and await neighbours.is_any_ready()):
        return problem(
            request, 503, "Not ready", "unavailable", "This server is stopping.", headers={"Retry-After": "1"}
        )
    if request.query_params.get("exclude") == "postgres":
        return PlainTextResponse("ready\n")
    try:
        OF_REQUEST.set(False)  # a probe must not wait behind requests
        await services.storage.probe.send()
    except TimeoutError:
        raise StorageUnavailable("Postgres does not answer.") from None
    return PlainTextResponse("ready\n")
