"""Handlers for operations: liveness, readiness, metrics."""

import asyncio
from importlib.metadata import version
from math import nan
from platform import python_version

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.api.http.errors import problem
from app.api.services import services_of
from app.domain.errors import StorageUnavailable
from app.storage.database import Statement
from app.telemetry import BUILD_INFO, OLDEST_QUEUED_SECONDS, TASKS, TURNS_QUEUED, TURNS_WAITING

_LONGEST_WAIT = 2.0  # seconds: a load balancer that asks does not wait much longer
SELECT_ONE = Statement("SELECT 1")


async def healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    """Raises StorageUnavailable, which becomes a 503, within two seconds. With `exclude=postgres` only a server that is
    stopping is not ready: its streams go on without Postgres, and all replicas lose that at once.
    """
    services = services_of(request)
    if not services.is_ready():
        return problem(503, "Not ready", "This server is stopping.", headers={"Retry-After": "1"})
    if request.query_params.get("exclude") == "postgres":
        return PlainTextResponse("ready\n")
    try:
        async with asyncio.timeout(_LONGEST_WAIT):
            await services.storage.database.row(SELECT_ONE)
    except TimeoutError:
        raise StorageUnavailable("Postgres does not answer.") from None
    return PlainTextResponse("ready\n")


async def metrics(request: Request) -> Response:
    """The metrics of this replica. Those of all replicas are NaN while Postgres does not answer."""
    services = services_of(request)
    queued, waiting, oldest = await services.storage.turn_counts.open_turns() or (nan, nan, nan)
    TURNS_QUEUED.set(queued)
    TURNS_WAITING.set(waiting)
    OLDEST_QUEUED_SECONDS.set(oldest)
    BUILD_INFO.labels(version("turnstream"), python_version()).set(1)
    TASKS.set(len(asyncio.all_tasks()))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
