"""The handler of results of jobs, which programs elsewhere post with a token for one job alone."""

from uuid import UUID

import structlog
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import output_text
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.responses import JobResultOut
from turnstream.api.schemas.tools import JobResultIn
from turnstream.api.services import services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Unauthorized
from turnstream.domain.jobs import digest_of_token
from turnstream.telemetry import JOBS_SETTLED
from turnstream.tools.tool import Outcome

log = structlog.get_logger(__name__)

# A stranger does not learn which jobs there are.
_WRONG = "Send `Authorization: Bearer TOKEN` with the newest token of this job."


async def put_result(request: Request) -> Response:
    services = services_of(request)
    sent, _ = await read_body(request, JobResultIn)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        job = UUID(request.path_params["job"])
    except ValueError:
        raise Unauthorized(_WRONG) from None
    outcome = Outcome(output_text(sent.output), is_error=sent.is_error, data=sent.data)
    end = {"outcome": outcome, "from_elsewhere": True}  # as a JobEnd
    digest = digest_of_token(token.strip() if scheme.lower() == "bearer" else "")
    put = await services.storage.job_results.put(job, digest, end)
    if put is None:
        log.info("job.result_refused", job=str(job))  # the job may have been deleted with its chat
        raise Unauthorized(_WRONG)
    if put.owner is not None:
        JOBS_SETTLED.labels(outcome.kind).inc()
        await services.live.refresh(put.turn)
        services.live.feed.notify(put.owner)
    return json_response(JobResultOut(applied=put.owner is not None, reason=put.reason))
