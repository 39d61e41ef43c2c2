"""Problem documents (RFC 9457). Only this module converts errors to responses."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.domain.errors import (
    Forbidden,
    OfAnotherCell,
    Overloaded,
    RefusalCode,
    RequestRefused,
    StorageUnavailable,
    TooMany,
    Unauthorized,
)
from turnstream.kit.requirements import sentence

log = structlog.get_logger(__name__)

_LONGEST_WAIT = 3  # seconds

# A proxy forwards a refused request to the cell that this header names (docs/deploy/nginx-cells.conf).
CELL_HEADER = "Turnstream-Cell"
# The server may detect the outage after a commit whose confirmation was lost.
STORAGE_AWAY = (
    "The database is away, or cannot store anything now. Try again; with an `Idempotency-Key`, what was stored all the"
    " same is not stored twice."
)
# A stopping server cancels unanswered requests after some seconds.
CUT_OFF = (
    "The server stops before the request has ended. Try again; with an `Idempotency-Key`, what was stored all the same"
    " is not stored twice."
)


# The server may also refuse a request between two statements, after the first statement has stored something.
OVERLOADED = (
    "The server has more requests than it can answer now. Try again after `Retry-After`; with an `Idempotency-Key`,"
    " what was stored all the same is not stored twice."
)


class Unavailable(RequestRefused):
    """Another server that the request needs is unreachable, or this server is stopping."""

    status = 503
    title = "Temporarily unavailable"
    code = "unavailable"


class TooLarge(RequestRefused):
    status = 413
    title = "The request body is too large"
    code = "too_large"


class UnsupportedMedia(RequestRefused):
    status = 415
    title = "The request body is of the wrong kind"
    code = "unsupported_media_type"


class BadRequest(RequestRefused):
    status = 400
    title = "The request cannot be read"
    code = "unreadable"


class Invalid(RequestRefused):
    """Refuses wrong fields. Each of `errors` has the `field`, and a sentence as its `message`."""

    def __init__(self, errors: Sequence[Mapping[str, str]]) -> None:
        super().__init__(errors[0]["message"], field=errors[0]["field"])
        self.errors = errors


def problem(
    request: Request,
    status: int,
    title: str,
    code: RefusalCode,
    detail: str,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
) -> Response:
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    if errors:
        body["errors"] = errors
    body |= members or {}
    body["request_id"] = request.state.request_id
    return Response(to_json(body), status, dict(headers or {}), media_type="application/problem+json")


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    if isinstance(error, Invalid):
        detail, errors = error.detail, error.errors
    else:
        detail = sentence(error.detail, error.field)
        errors = [{"field": error.field, "message": detail}] if error.field else []
    if isinstance(error, Unauthorized):
        address = request.client.host if request.client else "unknown"
        sent = "a token" if "authorization" in request.headers or hasattr(request.state, "access_token") else "no token"
        request.app.state.services.note_refusal(address, sent)
    return problem(request, error.status, error.title, error.code, detail, errors, _headers(error), error.members)


def _headers(error: RequestRefused) -> dict[str, str]:
    match error:
        case Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case Forbidden(scopes=scopes):  # RFC 6750, 3.1
            needed = f', scope="{" ".join(scopes)}"' if scopes else ""
            return {"WWW-Authenticate": f'Bearer error="insufficient_scope"{needed}'}
        case OfAnotherCell(cell=cell):
            return {CELL_HEADER: cell}
        case Unavailable():
            return {"Retry-After": "1"}
        case TooMany():
            return {"Retry-After": str(error.retry_after)}
        case _:
            return {}


async def unavailable(request: Request, error: Exception) -> Response:
    if isinstance(error, Overloaded):  # not logged, because overload refuses many requests; a metric counts them
        wait = str(random.randint(1, _LONGEST_WAIT))  # noqa: S311, so that not all come back at once
        return problem(request, 503, Unavailable.title, "overloaded", OVERLOADED, headers={"Retry-After": wait})
    log.error("storage.unavailable", error=str(error), request=request.state.request_id)
    return problem(request, 503, Unavailable.title, Unavailable.code, STORAGE_AWAY, headers={"Retry-After": "1"})


async def cut_off(request: Request) -> Response:
    """Returns the response to a request that was cancelled outside of its handler."""
    return await refused(request, Unavailable(CUT_OFF))


async def no_route(request: Request, error: Exception) -> Response:
    """Answers a request whose path does not exist, or does not support its method."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    if allowed:
        code: RefusalCode = "method_not_allowed"
        detail = f"This path does not take {request.method}; it takes {allowed}."
    else:
        code, detail = "unknown_path", "This server has no such path."
    return problem(request, error.status_code, error.detail, code, detail, headers=error.headers)


async def failed(request: Request, error: Exception) -> Response:
    id = request.state.request_id
    log.error("request.failed", method=request.method, path=request.url.path, request=id, exc_info=error)
    return problem(request, 500, "The server failed", "server_failed", f"The cause is in the server's log, at {id}.")


async def out_of_memory(request: Request, error: Exception) -> Response:
    """Shuts the server down in an orderly way, because its next action may fail anywhere."""
    request.app.state.services.failed.set()
    return await failed(request, error)


async def disconnected(_request: Request, _error: Exception) -> Response:
    """Completes a request whose client disconnected before the end of the body. Nobody reads this response."""
    return Response(status_code=400)


HANDLERS = {
    ClientDisconnect: disconnected,
    RequestRefused: refused,
    StorageUnavailable: unavailable,
    HTTPException: no_route,
    MemoryError: out_of_memory,
}
