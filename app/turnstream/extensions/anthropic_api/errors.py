"""Encodes refusals and failures in Anthropic's form. Anthropic's SDKs choose an error's class by its HTTP status."""

from collections.abc import Mapping
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.errors import OVERLOADED, STORAGE_AWAY, Invalid, TooLarge, refused, unavailable
from turnstream.domain.errors import (
    Forbidden,
    NotFound,
    Overloaded,
    RequestRefused,
    StorageUnavailable,
    TooMany,
    Unauthorized,
)
from turnstream.domain.turns import TurnError
from turnstream.extensions.anthropic_api.schemas import Json
from turnstream.kit.requirements import sentence
from turnstream.libraries.dialects.failures import failure_class, naming_block
from turnstream.libraries.dialects.streams import wait_headers

# Maps fields of a turn's options to their names in Anthropic's requests.
_RENAMED = {
    "blocks": "messages",
    "labels": "metadata",
    "limits": "tools",
    "output": "output_config.format",
    "parent_id": "messages",
    "system_prompt": "system",
}
_WHOLE = frozenset({"blocks", "parent_id", "labels", "limits"})  # the API has other names for their members
_STATUSES = {
    "invalid_request_error": 400,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}


class ThreadRefused(NotFound):
    """A thread cannot be continued. A client that receives this `error_code` sends the whole conversation again."""

    def __init__(self, detail: str, error_code: str) -> None:
        super().__init__(detail, field="thread.previous_message_id")
        self.error_code = error_code


def error_json(
    type: str,
    message: str,
    request: str | None = None,
    error_code: str | None = None,
    wait: Mapping[str, float] | None = None,
) -> Json:
    details = {"details": {"error_code": error_code}} if error_code else {}
    error = {"type": type, "message": message, **details, **(wait or {})}
    return {"type": "error", "error": error, "request_id": request}


def text_of(error: RequestRefused) -> str:
    """Returns the sentence of a refusal, in which the field has its name from the request."""
    if error.field is None:
        return error.detail
    ours, theirs = error.field, error.field.removeprefix("params.")
    for name, renamed in _RENAMED.items():
        if ours == name or ours.startswith(f"{name}."):
            theirs = renamed if name in _WHOLE else renamed + ours.removeprefix(name)
    detail = error.detail if isinstance(error, Invalid) else sentence(error.detail, ours)
    return detail.replace(f"`{ours}`", naming_block(ours, theirs))


def type_of(error: RequestRefused) -> str:
    match error:
        case Unauthorized():
            return "authentication_error"
        case Forbidden():
            return "permission_error"
        case NotFound():
            return "not_found_error"
        case TooMany():
            return "rate_limit_error"
        case TooLarge():
            return "request_too_large"
        case _ if error.code == "unknown_model":
            return "not_found_error"
        case _ if error.status >= 500:
            return "api_error"
    return "invalid_request_error"


async def refusal(request: Request, error: RequestRefused) -> Response:
    """Returns the response to a refused request. This server's status 422 becomes 400, as in Anthropic's API."""
    ours = await refused(request, error)  # this call counts refused logins, and sets headers
    status = 404 if error.code == "unknown_model" else 400 if error.status == 422 else error.status
    headers = {name: value for name, value in ours.headers.items() if not name.startswith("content-")}
    code = error.error_code if isinstance(error, ThreadRefused) else None
    return _response(request, type_of(error), text_of(error), status, headers, code)


async def storage_refusal(request: Request, error: StorageUnavailable) -> Response:
    ours = await unavailable(request, error)
    type, text = ("overloaded_error", OVERLOADED) if isinstance(error, Overloaded) else ("api_error", STORAGE_AWAY)
    return _response(request, type, text, ours.status_code, {"Retry-After": ours.headers["Retry-After"]})


def failure(
    request: Request, error: tuple[str, str], wait: float | None = None, since: datetime | None = None
) -> Response:
    """Returns the response for a failed turn. The SDKs must not post the message again, because the turn has already
    retried its calls. `wait` is the number of seconds that the provider requested at `since`.
    """
    return _response(request, *error, _STATUSES[error[0]], {"x-should-retry": "false", **wait_headers(wait, since)})


def failure_of(error: TurnError) -> tuple[str, str]:
    """Returns the type and the text of a turn's failure."""
    match failure_class(error.type):
        case "rate_limit":
            return "rate_limit_error", error.message
        case "overloaded":
            return "overloaded_error", error.message
        case "too_long":
            return "invalid_request_error", f"prompt is too long: {error.message}"  # agents compact on this text
        case "refused":
            return "invalid_request_error", error.message
        case "account" | "server":
            return "api_error", error.message


def _response(
    request: Request, type: str, text: str, status: int, headers: dict[str, str], code: str | None = None
) -> Response:
    id: str = request.state.request_id
    body = to_json(error_json(type, text, id, code))
    return Response(body, status, {**headers, "request-id": id}, media_type="application/json")
