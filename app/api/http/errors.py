"""Problem documents (RFC 9457): the one place where an error becomes an answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from app.api.codec import to_json
from app.domain.errors import RequestRefused, StorageUnavailable

log = structlog.get_logger(__name__)


class Unauthorized(RequestRefused):
    status = 401
    title = "Not authorized"


class TooLarge(RequestRefused):
    status = 413
    title = "The request body is too large"


class UnsupportedMedia(RequestRefused):
    status = 415
    title = "The request body is of the wrong kind"


class BadRequest(RequestRefused):
    status = 400
    title = "The request cannot be read"


class Invalid(RequestRefused):
    """Several fields are wrong; each is named with what would be right."""

    def __init__(self, errors: Sequence[Mapping[str, str]]) -> None:
        first = errors[0]
        super().__init__(f"{first['field']}: {first['message']}", field=first["field"])
        self.errors = errors


def problem(
    status: int,
    title: str,
    detail: str | None = None,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    if detail:
        body["detail"] = detail
    if errors:
        body["errors"] = errors
    return Response(to_json(body), status, dict(headers or {}), media_type="application/problem+json")


async def refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    if isinstance(error, Invalid):
        errors = error.errors
    else:
        errors = [{"field": error.field, "message": error.detail}] if error.field else []
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    return problem(error.status, error.title, error.detail, errors, headers)


async def unavailable(_request: Request, error: Exception) -> Response:
    log.error("storage.unavailable", error=str(error))
    detail = "The database cannot be reached; nothing was stored. Try again."
    return problem(503, "Temporarily unavailable", detail, headers={"Retry-After": "1"})


async def no_route(request: Request, error: Exception) -> Response:
    """Nothing is there, or not with this method."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    detail = f"{request.method} is not one of {allowed}" if allowed else "See /openapi.json for what there is"
    return problem(error.status_code, error.detail, f"{detail}.", headers=error.headers)


async def failed(request: Request, error: Exception) -> Response:
    log.error("request.failed", method=request.method, path=request.url.path, exc_info=error)
    return problem(500, "The server failed", "Its log says more; nothing is told here.")


async def hung_up(_request: Request, _error: Exception) -> Response:
    """Whoever asked left in the middle of the body; nobody reads this."""
    return Response(status_code=400)


HANDLERS = {
    ClientDisconnect: hung_up,
    RequestRefused: refused,
    StorageUnavailable: unavailable,
    HTTPException: no_route,
    Exception: failed,
}
