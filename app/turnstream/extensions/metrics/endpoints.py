"""The handler that returns metrics."""

import asyncio
import hmac
from importlib.metadata import version
from math import nan
from platform import python_version
from typing import cast, get_args

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.identity.authenticator import bearer_token
from turnstream.api.neighbours import is_from_neighbour
from turnstream.api.services import services_of
from turnstream.domain.errors import Unauthorized
from turnstream.domain.jobs import OpenJobState
from turnstream.libraries.extension_metrics import (
    BUILD_INFO,
    JOBS_OPEN,
    OLDEST_QUEUED_SECONDS,
    OVERDUE_JOB_SECONDS,
    REPLICAS,
    TASKS,
    TURNS_QUEUED,
    TURNS_WAITING,
)
from turnstream.libraries.turn_counts import TurnCounts
from turnstream.storage.database import OF_REQUEST


async def metrics(request: Request) -> Response:
    """Returns the metrics of this replica. If the server has several processes, each metric has the number of its
    process as a label. Counts over all replicas are NaN while Postgres is unreachable. Raises Unauthorized.
    """
    services = services_of(request)
    if services.http.metrics_token is not None and not is_from_neighbour(request):
        _check_token(request, services.http.metrics_token)
    OF_REQUEST.set(False)  # a probe must not wait behind a request
    counts = cast("TurnCounts", services.states["metrics"])
    queued, waiting, oldest, jobs, replicas = await counts.open_turns() or (nan, nan, nan, None, nan)
    REPLICAS.set(replicas)
    TURNS_QUEUED.set(queued)
    TURNS_WAITING.set(waiting)
    OLDEST_QUEUED_SECONDS.set(oldest)
    for state in get_args(OpenJobState):
        JOBS_OPEN.labels(state).set(getattr(jobs, state, nan))
    OVERDUE_JOB_SECONDS.set(nan if jobs is None else jobs.overdue)
    BUILD_INFO.labels(version("turnstream"), python_version()).set(1)
    TASKS.set(len(asyncio.all_tasks()))
    own, neighbours = generate_latest(), services.neighbours
    if neighbours is not None and not is_from_neighbour(request):
        own = await neighbours.metrics(own)
    return Response(own, media_type=CONTENT_TYPE_LATEST)


def _check_token(request: Request, token: str) -> None:
    """Raises Unauthorized if the token is wrong. Tokens of owners are refused, because the metrics cover all owners."""
    if not hmac.compare_digest((bearer_token(request) or "").encode(), token.encode()):
        raise Unauthorized("`GET /metrics` needs `Authorization: Bearer TOKEN` with TURNSTREAM_METRICS_TOKEN.")
