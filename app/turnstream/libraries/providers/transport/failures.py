"""Parses the failures of model calls, in all the forms that servers and gateways send, and classifies them.

The shapes differ: an object in `error`, a string in `error`, the object itself, a list, plain text, a page of HTML; a
name, a number or a sentence as `code`. A gateway wraps the failure of the provider behind it: as JSON text in
`metadata.raw` (OpenRouter), or in a sentence in `message` (LiteLLM and others that forward an exception's text). The
innermost failure is the cause: its message is shown, and its name and status decide the class.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import aiohttp
import httpx2
import msgspec
import structlog

from turnstream.domain.errors import AccountRefused, PermanentError, ProviderError, TooLong, TransientError
from turnstream.kit.clock import CLOCK

log = structlog.get_logger(__name__)

TOO_LONG = "context_length_exceeded"
MAX_MESSAGE = 1_000  # characters; the rest of an error text is dropped

_DEEPEST = 6  # maximum number of wrappers of a failure that are removed
_LONGEST_PYTHON = 10_000  # characters; a longer Python literal is not parsed
_OK = 200  # a response whose stream contains a failure also has this status
_TOO_LARGE = 413

# Failures that the operator must resolve with the provider.
OF_ACCOUNT = frozenset(
    {
        "AccessDeniedException",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UnrecognizedClientException",
        "access_terminated",
        "authentication_error",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_quota",
        "invalid_api_key",
        "permission_error",
    }
)
ACCOUNT_STATUSES = frozenset({401, 402})
# Failures that are permanent by their name, whatever their status is.
PERMANENT = OF_ACCOUNT | {
    TOO_LONG,
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ResourceNotFoundException",
    "ValidationException",
    "content_filter",
    "content_policy_violation",
    "invalid_prompt",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "request_too_large",
}
# The provider has no capacity for the request now.
BUSY = frozenset(
    {
        "RESOURCE_EXHAUSTED",
        "ServiceUnavailableException",
        "ThrottlingException",
        "TooManyRequestsException",
        "UNAVAILABLE",
        "engine_overloaded_error",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "service_unavailable",
    }
)
_TRANSIENT = BUSY | {
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "InternalServerException",
    "ModelTimeoutException",
    "api_error",
    "conflict_error",
    "internal_server_error",
    "server_error",
    "timeout",
    "timeout_error",
    "tool_use_failed",  # the server cannot parse the model's call; the next one may be valid
}
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
BUSY_STATUSES = frozenset({429, 503, 529})
# The texts of failures with these statuses mention lengths, too, but mean the limit of a minute, an account or a plan.
_NEVER_TOO_LONG = frozenset({401, 402, 403, 429})
_TOO_LONG_TEXT = re.compile(
    r"maximum context length|context (window|length|size|limit)|(prompt|input) is too long|maximum prompt length"
    r"|too large for model|exceeds the (model's )?(maximum|available) (input|context)|reduce the length of"
    r"|exceeds the maximum number of tokens|too many input tokens|ContextWindowExceeded",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_ANY_MINUTE = re.compile(r"^request too large\b", re.IGNORECASE)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_NAMES = ("code", "type", "status", "__type")
_NO_NAMES = frozenset({"error", "None", "null"})
_STATUSES = ("status_code", "status", "code")
STATUS = re.compile("[45][0-9]{2}")
_TEXTS = ("error", "message", "detail", "msg", "Message")
_CONTAINERS = ("error", "errors", "detail")
_TITLE = re.compile(r"<title>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
# Members of a body that request a wait, and the length of their unit in seconds. `retryDelay` is Google's, such as
# "37s".
_WAITS = {"retry_after": 1, "retry_after_seconds": 1, "retryAfter": 1, "retryDelay": 1, "retry_after_ms": 0.001}


def provider_error(
    failure: object,
    status: int = _OK,
    *,
    headers: httpx2.Headers | None = None,
    request_id: str | None = None,
) -> ProviderError:
    """Returns the error for `failure`, which is a decoded body or event, or its text. `status` and `headers` are the
    response's status and headers.

    The retry decision follows the header `x-should-retry`, else the name of the failure, else the status.
    """
    headers, in_stream = headers or httpx2.Headers(), status == _OK
    layers = _layers(failure)
    statuses = [_status(members, _OK if place else status) for place, members in enumerate(layers)]
    status = next((each for each in reversed(statuses) if each != _OK), _OK)
    name = _type(layers, statuses)
    message = _message(layers) or (
        msgspec.json.encode(failure).decode() if failure else f"The provider gave no reason (status {status})."
    )
    kind = _kind(layers, statuses, headers.get("x-should-retry"))
    if _is_too_long(name, status, message):
        kind, name = TooLong, TOO_LONG
    elif (status == 429 or name == "rate_limit_exceeded") and _TOO_LARGE_FOR_ANY_MINUTE.search(message):
        kind = PermanentError  # the request exceeds the limit of a minute, so no wait helps
    elif kind is PermanentError and (name in OF_ACCOUNT or status in ACCOUNT_STATUSES):
        kind = AccountRefused
    own_id = failure.get("request_id") if isinstance(failure, Mapping) else None
    if isinstance(own_id, str) and (in_stream or request_id is None):
        request_id = own_id
    waits = [wait for wait in (retry_after(headers), *_waits([failure, *layers])) if wait is not None]
    return kind(
        name,
        message[:MAX_MESSAGE],
        request_id=request_id,
        retry_after=max(waits, default=None),
        busy=kind is TransientError and (status in BUSY_STATUSES or name in BUSY),
    )


def content_type_error(kind: str, body: bytes, request_id: str | None) -> TransientError:
    """Returns the error for a successful response that has a wrong content type, such as a proxy's log-in page. The
    provider itself did not answer, so a later call or another provider may succeed.
    """
    text = body.decode("utf-8", "replace").strip()
    log.warning("provider.unreadable", reason=f"{kind or 'no content type'}: {text[:200]!r}")
    if text.startswith("<"):
        message = f"{_page(text)} It is no answer of a model."
    else:
        message = f"The server answered with {kind or 'a body without a content type'}, which is no answer of a model."
    return TransientError("bad_content_type", message[:MAX_MESSAGE], request_id=request_id)


def _kind(
    layers: list[Mapping[str, Any]], statuses: list[int], should_retry: str | None
) -> type[TransientError] | type[PermanentError]:
    if should_retry in {"true", "false"}:
        return TransientError if should_retry == "true" else PermanentError
    for members, status in zip(reversed(layers), reversed(statuses), strict=True):
        for name in _names(members):
            if name in PERMANENT or name in _TRANSIENT:
                return PermanentError if name in PERMANENT else TransientError
        if status != _OK:
            return PermanentError if 400 <= status < 500 and status not in _TRANSIENT_STATUSES else TransientError
    return TransientError


def _is_too_long(name: str, status: int, message: str) -> bool:
    if name == TOO_LONG:
        return True
    if status in _NEVER_TOO_LONG or name in BUSY:
        return False
    return status == _TOO_LARGE or _TOO_LONG_TEXT.search(message) is not None


def _type(layers: list[Mapping[str, Any]], statuses: list[int]) -> str:
    """Returns the provider's own name for the failure, or a name that is made from the status."""
    for members, status in zip(reversed(layers), reversed(statuses), strict=True):
        if name := next(_names(members), None):
            return name
        if status != _OK:
            return f"http_{status}"
    return "provider_error"


def _names(members: Mapping[str, Any]) -> Iterator[str]:
    for member in _NAMES:
        value = members.get(member)
        name = value.rpartition("#")[2] if isinstance(value, str) else ""  # Amazon's names have a namespace prefix
        if _NAME.fullmatch(name) and name not in _NO_NAMES:
            yield name


def _status(members: Mapping[str, Any], status: int) -> int:
    """Returns the status of a failure. Within a stream and behind a gateway, the failure may contain its status."""
    if status != _OK:
        return status
    for name in _STATUSES:
        found = members.get(name)
        if isinstance(found, int) and 400 <= found < 600:
            return found
        if isinstance(found, str) and STATUS.fullmatch(found):
            return int(found)
    return status


def _message(layers: list[Mapping[str, Any]]) -> str | None:
    """Returns the innermost failure's message. If a gateway names the provider, that name precedes the message."""
    found = next((place for place in range(len(layers) - 1, -1, -1) if _text(layers[place])), None)
    if found is None:
        return None
    message = _text(layers[found])
    if message.startswith("<"):  # an error page of a proxy
        return _page(message)
    names = (_metadata(members).get("provider_name") for members in reversed(layers[:found]))
    upstream = next((name for name in names if isinstance(name, str) and name), None)
    return f"{upstream}: {message}" if upstream and upstream not in message else message


def _page(html: str) -> str:
    title = _TITLE.search(html)
    return f"The server answered with a page of HTML{f': {title[1]}' if title else ''}."


def _text(members: Mapping[str, Any]) -> str:
    texts = (members.get(member) for member in _TEXTS)
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")


def _metadata(members: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = members.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


# --- failures within failures ----------------------------------------------------------------------------------------


def _layers(failure: object) -> list[Mapping[str, Any]]:
    """Returns the members of the failure, then the members of the failure that it wraps, and so on."""
    layers = [_members(failure)]
    while len(layers) <= _DEEPEST and (inner := _wrapped(layers[-1])):
        layers.append(inner)
    return layers


def _wrapped(members: Mapping[str, Any]) -> Mapping[str, Any]:
    raw = _metadata(members).get("raw")
    for carrier in (raw, *(members.get(name) for name in _TEXTS)):
        inner = _members(_object_in(carrier) if isinstance(carrier, str) else carrier)
        if _text(inner):
            return inner
    # A raw message of a single word ("ERROR") is less useful than the message that wraps it.
    return {"message": raw} if isinstance(raw, str) and " " in raw.strip() else {}


def _members(failure: object) -> Mapping[str, Any]:
    """Returns the object that contains the failure's own members, without the objects and lists around it."""
    for _ in range(_DEEPEST):
        if isinstance(failure, str):
            return {"message": failure}
        if isinstance(failure, list):  # Google and Cloudflare send lists; the first failure counts
            failure = failure[0] if failure else None
        elif isinstance(failure, Mapping):
            packed = (failure.get(name) for name in _CONTAINERS)
            inner = next((each for each in packed if each and isinstance(each, Mapping | list)), None)
            if inner is None:
                return failure
            failure = inner
        else:
            break
    return {}


def _object_in(text: str) -> object:
    """Returns the object that a text contains, as JSON or as a Python literal, or None if there is no object."""
    start, end = text.find("{"), text.rfind("}") + 1
    if not 0 <= start < end:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        pass
    if end - start > _LONGEST_PYTHON:
        return None
    try:
        return ast.literal_eval(text[start:end])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


# --- when to try again -----------------------------------------------------------------------------------------------


def retry_after(headers: httpx2.Headers) -> float | None:
    """Returns the wait in seconds that the headers request, in milliseconds, in seconds or as a date. If they request
    several waits, returns the longest wait.

    Headers that contain the reset of a limit are ignored: the next call is possible long before the whole limit is free
    again.
    """
    waits = [_number(value, 0.001) for value in headers.get_list("retry-after-ms")]
    for value in headers.get_list("retry-after"):
        seconds = _number(value)
        waits.append(_until(value) if seconds is None else seconds)
    return max((wait for wait in waits if wait is not None), default=None)


def _until(value: str) -> float | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - CLOCK.now()).total_seconds())


def _waits(failures: list[Any]) -> Iterator[float | None]:
    for failure in failures:
        members = failure if isinstance(failure, Mapping) else {}
        details = members.get("details")
        for part in (members, _metadata(members), *(details if isinstance(details, list) else ())):
            if isinstance(part, Mapping):
                yield from (_number(part.get(name), unit) for name, unit in _WAITS.items())


def _number(value: object, unit: float = 1) -> float | None:
    """Returns the value in seconds, if it is a finite number."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value.strip().removesuffix("s")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, number * unit) if isfinite(number) else None


# --- lost connections ------------------------------------------------------------------------------------------------

# Sentences by the names of exceptions of httpx2, of its transport, and of Python; the first matching row applies. The
# aiohttp transport maps some exceptions to an exception for another cause, and raises others unchanged.
_CAUSES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"ClientConnectorDNSError", "gaierror"}), "The name of the provider's server was not found."),
    (
        frozenset({"ClientHttpProxyError", "ClientProxyConnectionError", "ProxyError"}),
        "The proxy made no connection to the provider.",
    ),
    (
        frozenset({"ClientConnectorCertificateError", "SSLCertVerificationError", "ServerFingerprintMismatch"}),
        "The TLS certificate of the provider is not valid.",
    ),
    (frozenset({"ClientSSLError", "SSLError"}), "No TLS connection to the provider could be made."),
    (frozenset({"ConnectionRefusedError"}), "The provider refused the connection."),
    (
        frozenset({"InvalidURL", "LocalProtocolError", "NonHttpUrlClientError", "UnsupportedProtocol"}),
        "The address of the provider is not valid.",
    ),
    (frozenset({"TooManyRedirects"}), "The provider redirected the request too often."),
    (frozenset({"DecodingError"}), "The provider's answer could not be decompressed."),
    (frozenset({"ClientResponseError"}), "The provider's answer is not valid HTTP."),
    (frozenset({"ConnectionTimeoutError"}), "The connection to the provider could not be made in time."),
    (frozenset({"PoolTimeout"}), "No connection to the provider was free in time."),
    (frozenset({"WriteTimeout"}), "The provider did not read the request in time."),
)
# Exceptions of the transport that an SDK passes on: exceptions while a body is read, and exceptions that OpenAI's SDK
# does not wrap.
LOST = (httpx2.HTTPError, aiohttp.ClientError, OSError)
_BROKEN_OFF = frozenset(
    {
        "ClientPayloadError",
        "CloseError",
        "ConnectionError",
        "ProtocolError",
        "ReadError",
        "ServerDisconnectedError",
        "WriteError",
    }
)
_UNCONNECTED = frozenset({"ClientConnectionError", "ConnectError", "ConnectTimeout"})
_SILENT = "The provider sent nothing for too long."


class Unanswered(Exception):
    """A direct call got no response; its cause is the transport's exception."""


def connection_error(error: Exception) -> TransientError:
    """Converts an exception of an SDK, a direct call or the transport that prevented a complete answer. The transport's
    text is only logged, because it contains addresses and hardly helps the caller.
    """
    causes = list(_causes(error))
    log.warning("provider.unreachable", reason=[f"{type(each).__name__}: {each}"[:MAX_MESSAGE] for each in causes])
    names = {kind.__name__ for each in causes for kind in type(each).__mro__}
    sentence = next((sentence for known, sentence in _CAUSES if known & names), None)
    # The SDKs wrap exceptions that are raised before the response. They do not wrap exceptions while the body is read.
    place = "in the middle of its answer" if isinstance(error, LOST) else "before it answered"
    if sentence is None and names & _BROKEN_OFF:
        sentence = f"The provider closed the connection {place}."
    elif sentence is None and "ServerTimeoutError" not in names and names & _UNCONNECTED:
        sentence = "No connection to the provider could be made."
    elif sentence is None and names & {"ServerTimeoutError", "TimeoutException"}:
        return TransientError("timeout_error", _SILENT)
    return TransientError("connection_error", sentence or f"The connection to the provider failed {place}.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_DEEPEST):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
