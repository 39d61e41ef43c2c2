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
    status = _status(members, status)
    texts = (members.get(member) for member in ("message", "detail", "msg"))
    message = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), None)
    if message is None:
        message = msgspec.json.encode(failure).decode() if failure else "(the provider gave no reason)"
    names = (members.get(member) for member in ("code", "type"))
    name = next((name for name in names if isinstance(name, str) and _NAME.fullmatch(name)), None)
    if name is None:
        name = f"http_{status}" if status != 200 else "provider_error"
    if status in {200, 400, 413, 422} and _TOO_LONG_TEXT.search(message):
        name = TOO_LONG
    kind: type[ProviderError]
    if name == TOO_LONG:
        kind = TooLong
    elif (status == 429 or name == "rate_limit_exceeded") and _TOO_LARGE_FOR_ANY_MINUTE.search(message):
        kind = PermanentError  # larger than the limit of a minute: no wait can help
    else:
        kind = classify_failure([name, members.get("type")], status, should_retry, _PERMANENT, _TRANSIENT)
    return kind(name, message[:MAX_MESSAGE], request_id=request_id, retry_after=retry_after)


def _members(failure: object) -> Mapping[str, Any]:
    if not isinstance(failure, Mapping):
        return {"message": failure} if isinstance(failure, str) else {}
    inner = failure.get("error")
    if isinstance(inner, Mapping):
        return inner
    return {**failure, "message": inner} if isinstance(inner, str) else failure


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
