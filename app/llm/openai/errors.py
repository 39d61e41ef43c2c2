"""What OpenAI and the servers that speak like it say when they fail, sorted. Pure.

The shapes differ: an object in `error`, a word in `error`, the object itself, plain text; a name, a number or a
sentence as `code`. The provider's own name for the failure is kept where it has one.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from app.domain.errors import PermanentError, ProviderError, TooLong
from app.llm.transport.http import MAX_MESSAGE, classify_failure

TOO_LONG = "context_length_exceeded"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
# Names that say more than the status they come with, which in mid-stream is 200.
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
        "tool_use_failed",  # the model wrote a call that is none; it may write a better one
    }
)
_TOO_LONG_WORDS = re.compile(
    r"maximum context length|context (window|length|size)|prompt is too long|maximum prompt length"
    r"|too large for model|exceeds the (model's )?(maximum|available) (input|context)|reduce the length of",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_ANY_MINUTE = re.compile(r"^request too large\b", re.IGNORECASE)


def provider_error(
    said: object,
    status: int,
    *,
    should_retry: str | None = None,
    request_id: str | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    """`said` is the decoded body or event, or its text where it is no JSON; `status` is the one of the response."""
    members = _members(said)
    message = _message(members, said)
    status = _status(members, status)
    type = _type(members, status)
    if type != TOO_LONG and status in {200, 400, 413, 422} and _TOO_LONG_WORDS.search(message):
        type = TOO_LONG
    kind = _kind(members, type, status, should_retry, message)
    return kind(type, message[:MAX_MESSAGE], request_id=request_id, retry_after=retry_after)


def _members(said: object) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        return {"message": said} if isinstance(said, str) else {}
    inner = said.get("error")
    if isinstance(inner, Mapping):
        return inner
    return {**said, "message": inner} if isinstance(inner, str) else said


def _message(members: Mapping[str, Any], said: object) -> str:
    for name in ("message", "detail", "msg"):
        if isinstance(found := members.get(name), str) and found.strip():
            return found.strip()
    return msgspec.json.encode(said).decode() if said else "(the provider gave no reason)"


def _status(members: Mapping[str, Any], status: int) -> int:
    """In mid-stream the status of the failure is one of its members, if anything."""
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
    if _is_too_large_for_any_minute(type, status, message):
        return PermanentError
    return classify_failure([type, members.get("type")], status, should_retry, _PERMANENT, _TRANSIENT)


def _is_too_large_for_any_minute(type: str, status: int, message: str) -> bool:
    limited = status == 429 or type == "rate_limit_exceeded"
    return limited and _TOO_LARGE_FOR_ANY_MINUTE.search(message) is not None
