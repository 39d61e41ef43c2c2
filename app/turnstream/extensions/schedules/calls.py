"""The calls of schedules."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint, Query
from turnstream.api.schemas.responses import Deleted
from turnstream.extensions.schedules import endpoints, trigger_endpoints
from turnstream.extensions.schedules.schemas import (
    NewTriggerOut,
    ScheduleIn,
    ScheduleList,
    ScheduleOut,
    ScheduleRunOut,
    ScheduleRuns,
    TriggeredTurnOut,
    TriggerIn,
    TriggerList,
    TriggerOut,
    TriggerSecretIn,
)

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
TRIGGERS = CallGroup(
    (
        Endpoint(
            "POST /api/triggers",
            trigger_endpoints.create_trigger,
            "Create a trigger, which posts a message for each signed message that it receives",
            TriggerIn,
            NewTriggerOut,
            (201,),
            (403, 404, 422, 429),
            limits=("writes",),
        ),
        Endpoint("GET /api/triggers", trigger_endpoints.list_triggers, "The owner's triggers", gives=TriggerList),
        Endpoint(
            f"GET {trigger_endpoints.PATH}",
            trigger_endpoints.get_trigger,
            "One trigger",
            gives=TriggerOut,
            problems=(404,),
        ),
        Endpoint(
            f"PUT {trigger_endpoints.PATH}",
            trigger_endpoints.replace_trigger,
            "Replace a trigger; its secrets stay",
            TriggerIn,
            TriggerOut,
            problems=(403, 404, 422),
            limits=("writes",),
        ),
        Endpoint(
            f"DELETE {trigger_endpoints.PATH}",
            trigger_endpoints.delete_trigger,
            "Delete a trigger; the turns of its runs stay",
            gives=Deleted,
            problems=(403, 404),
            limits=(),
        ),
        Endpoint(
            f"POST {trigger_endpoints.PATH}/secrets",
            trigger_endpoints.add_secret,
            "Make another secret of a trigger; those before it stay valid for a time",
            TriggerSecretIn,
            NewTriggerOut,
            (201,),
            (403, 404, 422),
            limits=("writes",),
        ),
        Endpoint(
            f"GET {trigger_endpoints.PATH}/runs",
            trigger_endpoints.list_trigger_runs,
            "The last runs of a trigger, newest first",
            gives=ScheduleRuns,
            problems=(404, 422),
            queries=(Query("limit", "how many", 50, 500),),
        ),
        Endpoint(
            f"POST {trigger_endpoints.PATH}",
            trigger_endpoints.receive_message,
            "Start a turn by a message, signed by the scheme of Standard Webhooks; one that comes again has no effect",
            "*/*",
            TriggeredTurnOut,
            (202,),
            (401, 409, 413, 422, 429, 500, 503),
            open=True,
            limits=(),
        ),
    ),
    "Triggers",
    "Messages of other programs that start turns",
)
