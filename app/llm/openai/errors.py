"""Conversion of failures of OpenAI and compatible servers to provider errors. Pure.

The shapes differ: an object in `error`, a string in `error`, the object itself, plain text; a name, a number or a
sentence as `code`. The provider's own name for the failure is kept if it has one.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from app.domain.errors import PermanentError, ProviderError, TooLong
from app.llm.transport.http import MAX_MESSAGE, classify_failure

TOO_LONG = "context_length_exceeded"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
# Names of failures that decide more than their status, which in mid-stream is 200.
_PERMANENT = frozenset(
    {
        TOO_LONG,
        "access_terminated",
        "authentication_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "content_filter",
        "content_policy_violation",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_prompt",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_error",
    }
)
_TRANSIENT = frozenset(
    {
        "api_error",
        "engine_overloaded_error",
        "internal_server_error",
        "overloaded_error",
        "rate_limit_exceeded",
        "server_error",
        "service_unavailable",
        "timeout",
        "tool_use_failed",  # the model wrote a call that the server cannot parse; the next try may be valid
    }
)
_TOO_LONG_TEXT = re.compile(
    r"maximum context length|context (window|length|size)|prompt is too long|maximum prompt length"
    r"|too large for model|exceeds the (model's )?(maximum|available) (input|context)|reduce the length of",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_ANY_MINUTE = re.compile(r"^request too large\b", re.IGNORECASE)


def provider_error(
    failure: object,
    status: int,
    *,
    should_retry: str | None = None,
    request_id: str | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    """Returns the error for `failure`, a decoded body or event, or its text; `status` is that of the response."""
    members = _members(failure)
    message = _message(members, failure)
    status = _status(members, status)
    type = _type(members, status)
    if type != TOO_LONG and status in {200, 400, 413, 422} and _TOO_LONG_TEXT.search(message):
        type = TOO_LONG
    kind = _kind(members, type, status, should_retry, message)
    return kind(type, message[:MAX_MESSAGE], request_id=request_id, retry_after=retry_after)


def _members(failure: object) -> Mapping[str, Any]:
    if not isinstance(failure, Mapping):
        return {"message": failure} if isinstance(failure, str) else {}
    inner = failure.get("error")
    if isinstance(inner, Mapping):
        return inner
    return {**failure, "message": inner} if isinstance(inner, str) else failure


def _message(members: Mapping[str, Any], failure: object) -> str:
    for name in ("message", "detail", "msg"):
        if isinstance(found := members.get(name), str) and found.strip():
            return found.strip()
    return msgspec.json.encode(failure).decode() if failure else "(the provider gave no reason)"


def _status(members: Mapping[str, Any], status: int) -> int:
    """Returns the status; in mid-stream it may be a member of the failure."""
    if status != 200:
        return status
    for name in ("status_code", "status", "code"):
        found = members.get(name)
        number = int(found) if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()) else 0
        if 400 <= number < 600:
            return number
    return status


def _type(members: Mapping[str, Any], status: int) -> str:
    for name in ("code", "type"):
        if isinstance(found := members.get(name), str) and _NAME.fullmatch(found):
            return found
    return f"http_{status}" if status != 200 else "provider_error"


def _kind(
    members: Mapping[str, Any], type: str, status: int, should_retry: str | None, message: str
) -> type[ProviderError]:
    if type == TOO_LONG:
        return TooLong
    limited = status == 429 or type == "rate_limit_exceeded"
    if limited and _TOO_LARGE_FOR_ANY_MINUTE.search(message):
        return PermanentError  # larger than the limit of a minute: no wait can help
    return classify_failure([type, members.get("type")], status, should_retry, _PERMANENT, _TRANSIENT)
