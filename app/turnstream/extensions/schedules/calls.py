"""The calls of schedules."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.responses import Deleted
from turnstream.extensions.schedules import endpoints
from turnstream.extensions.schedules.schemas import ScheduleIn, ScheduleList, ScheduleOut, ScheduleRunOut, ScheduleRuns

CALLS = CallGroup(
    (
        Endpoint(
            "POST /api/schedules",
            endpoints.create_schedule,
            "Create a schedule, which posts a message at each of its ticks",
            ScheduleIn,
            ScheduleOut,
            (201,),
            (403, 404, 422, 429),
            limits=("writes",),
        ),
        Endpoint("GET /api/schedules", endpoints.list_schedules, "The owner's schedules", gives=ScheduleList),
        Endpoint(
            "GET /api/schedules/{schedule}", endpoints.get_schedule, "One schedule", gives=ScheduleOut, problems=(404,)
        ),
        Endpoint(
            "PUT /api/schedules/{schedule}",
            endpoints.replace_schedule,
            "Replace a schedule; its next tick is counted from now",
            ScheduleIn,
            ScheduleOut,
            problems=(403, 404, 422),
            limits=("writes",),
        ),
        Endpoint(
            "DELETE /api/schedules/{schedule}",
            endpoints.delete_schedule,
            "Delete a schedule; the turns of its runs stay",
            gives=Deleted,
            problems=(404,),
            limits=(),
        ),
        Endpoint(
            "GET /api/schedules/{schedule}/runs",
            endpoints.list_runs,
            "The last runs of a schedule, newest first",
            gives=ScheduleRuns,
            problems=(404, 422),
            queries=(Query("limit", "how many", 50, 500),),
        ),
        Endpoint(
            "POST /api/schedules/{schedule}/run",
            endpoints.run_now,
            "Run a schedule now, beside its ticks; also one that is paused",
            gives=ScheduleRunOut,
            statuses=(202,),
            problems=(404,),
            limits=("writes",),
        ),
    ),
    "Schedules",
    "Messages that are posted at times: by a cron expression or at an interval",
)
