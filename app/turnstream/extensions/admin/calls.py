"""The API calls and the page for operators."""

from functools import partial

from starlette.routing import Route

from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint
from turnstream.extensions.admin import endpoints
from turnstream.extensions.admin.schemas import OVERVIEW_EVENTS, ActedTurnOut, OverviewOut, ReplicaOut
from turnstream.web.site import site

_call = partial(Endpoint, scopes=("admin",))

CALLS = CallGroup(
    (
        _call(
            "GET /api/admin/overview",
            endpoints.get_overview,
            "Replicas and open turns of all owners, the last hour's figures, what was spent today",
            gives=OverviewOut,
        ),
        _call(
            "GET /api/admin/stream",
            endpoints.stream_overview,
            "Follow the overview: all parts of it, then each that has changed",
            gives="text/event-stream",
            events="Overview",
        ),
        _call(
            "POST /api/admin/turns/{turn}/stop",
            endpoints.stop_turn,
            "Cancel a turn of any owner; one that has ended stays as it is",
            gives=ActedTurnOut,
            problems=(404,),
            limits=(),
        ),
        _call(
            "POST /api/admin/turns/{turn}/requeue",
            endpoints.requeue_turn,
            "Take a running turn from its replica and put it back into the queue",
            gives=ActedTurnOut,
            problems=(404, 409),
            limits=(),
        ),
        _call(
            "POST /api/admin/replicas/{replica}/drain",
            endpoints.drain_replica,
            "Let a replica take no more turns and hand back those that outlast the grace period; its streams go on",
            gives=ReplicaOut,
            problems=(404,),
            limits=(),
        ),
    ),
    "Operators",
    "All replicas and owners: what runs and waits, figures, and acts",
    {
        "Overview": EventStream(
            "Server-sent events, each with JSON as its data. They have no ids: each is the whole of its part.",
            OVERVIEW_EVENTS,
        )
    },
    routes=(Route("/admin", site().operators_page),),
)
