"""The calls of the API that stop jobs and accept their results."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.schemas.responses import TurnOut
from turnstream.extensions.jobs.endpoints import cancel_call, put_result
from turnstream.extensions.jobs.schemas import JobResultIn, JobResultOut

STOPS = CallGroup(
    (
        Endpoint(
            "POST /api/chats/{chat}/turns/{turn}/calls/{tool_use_id}/cancel",
            cancel_call,
            "Stop a call that runs in the background; the turn continues with its result",
            gives=TurnOut,
            statuses=(200, 202),
            problems=(404, 409),
            reach="turn",
            limits=(),
        ),
    ),
    "Actions",
)
RESULTS = CallGroup(
    (
        Endpoint(
            "POST /api/jobs/{job}/result",
            put_result,
            "Settle a call that goes on elsewhere, with the token of its job; a late result is reported, not applied",
            JobResultIn,
            JobResultOut,
            problems=(401, 422, 500, 503),
            open=True,
            limits=(),
        ),
    ),
    "Jobs",
    "Results of calls that go on elsewhere",
)
