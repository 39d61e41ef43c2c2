"""The handler of results of jobs, which programs elsewhere post with a token for one job alone."""

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import output_text
from turnstream.api.http.reading import id_of, read_body
from turnstream.api.schemas.responses import JobResultOut
from turnstream.api.schemas.tools import JobResultIn
from turnstream.api.services import services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Unauthorized
from turnstream.domain.jobs import digest_of_token
from turnstream.telemetry import JOBS_SETTLED
from turnstream.tools.tool import Outcome


async def put_result(request: Request) -> Response:
    services = services_of(request)
    sent, _ = await read_body(request, JobResultIn)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("Send `Authorization: Bearer TOKEN` with the token of the job.")
    job = id_of(request, "job")
    outcome = Outcome(output_text(sent.output), is_error=sent.is_error, data=sent.data)
    end = {"outcome": outcome, "from_elsewhere": True}  # as a JobEnd
    put = await services.storage.job_results.put(job, digest_of_token(token.strip()), end)
    if put is None:
        raise Unauthorized("The token of `Authorization` is not that of this job, or was replaced by a newer one.")
    if put.owner is not None:
        JOBS_SETTLED.labels(outcome.kind).inc()
        await services.live.refresh(put.turn)
        services.live.feed.notify(put.owner)
    return json_response(JobResultOut(applied=put.owner is not None, reason=put.reason))
