"""Handlers that stop jobs, and that accept results which programs elsewhere post with a token for one job."""

from uuid import UUID

import structlog
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import output_text
from turnstream.api.http.reading import id_of, read_body
from turnstream.api.services import services_and_owner, services_of
from turnstream.api.views import json_response, shown_turn
from turnstream.domain.errors import Conflict, NotFound, Unauthorized
from turnstream.domain.steps import unanswered_calls
from turnstream.extensions.jobs.result_rows import JobResults
from turnstream.extensions.jobs.schemas import JobResultIn, JobResultOut
from turnstream.extensions.jobs.stop_rows import JobStops
from turnstream.extensions.jobs.tokens import digest_of_token
from turnstream.libraries.extension_metrics import JOBS_SETTLED
from turnstream.tools.tool import Outcome

log = structlog.get_logger(__name__)

# A stranger must not learn which jobs exist.
_WRONG = "Send `Authorization: Bearer TOKEN` with the newest token of this job."
# The outcomes of jobs that a person has stopped.
_UNRUN = {"outcome": Outcome("The user stopped this call before it ran.", kind="refused", notes={"stopped": True})}
_STOPPED = {
    "outcome": Outcome(
        "The user stopped this call while it ran. It may have taken effect.", kind="refused", notes={"stopped": True}
    )
}


async def put_result(request: Request) -> Response:
    services = services_of(request)
    sent, _ = await read_body(request, JobResultIn)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        job = UUID(request.path_params["job"])
    except ValueError:
        raise Unauthorized(_WRONG) from None
    outcome = Outcome(output_text(sent.output), is_error=sent.is_error, data=sent.data)
    end = {"outcome": outcome, "from_elsewhere": True}  # the members of a `JobEnd`
    digest = digest_of_token(token.strip() if scheme.lower() == "bearer" else "")
    put = await JobResults(services.storage.database).put(job, digest, end)
    if put is None:
        log.info("job.result_refused", job=str(job))  # the job may have been deleted with its chat
        raise Unauthorized(_WRONG)
    if put.owner is not None:
        JOBS_SETTLED.labels(outcome.kind).inc()
        await services.live.refresh(put.turn)
        services.live.notify_owner(put.owner)
    return json_response(JobResultOut(applied=put.owner is not None, reason=put.reason))


async def cancel_call(request: Request) -> Response:
    """Stops a background call. Does not change a call that has a result, unless its job still runs and will send a
    report.
    """
    services, owner = services_and_owner(request)
    chat, id, call = id_of(request, "chat"), id_of(request, "turn"), request.path_params["tool_use_id"]
    turn = await services.storage.turns.get(owner, chat, id)
    calls = [block.key for block in turn.blocks if block.is_call and block.tool_use_id == call]
    if not calls:
        raise NotFound(f"There is no call {call!r} in turn {id}.")
    reports = any(job.key == calls[-1] and job.reports and not job.settled for job in turn.jobs)
    if reports or (not turn.ended and calls[-1] in {block.key for block in unanswered_calls(turn.blocks)}):
        if calls[-1] not in {job.key for job in turn.jobs}:
            raise Conflict(
                f"Call {call} does not run in the background: answer it if it waits, or cancel turn {id}.",
                field="tool_use_id",
            )
        ends = {"unrun": _UNRUN, "stopped": _STOPPED}
        if await JobStops(services.storage.database).stop(owner, id, call, **ends):
            JOBS_SETTLED.labels("stopped").inc()
        await services.live.refresh(id)
        services.live.notify_owner(owner)
        turn = await services.storage.turns.get(owner, chat, id)
    return await shown_turn(turn, services).response(200 if turn.ended else 202)
