"""Refusals in OpenAI's form, by which OpenAI's SDKs choose the class of the error that they raise."""

import re
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.http.errors import OVERLOADED, STORAGE_AWAY, Invalid, refused, unavailable
from turnstream.domain.errors import (
    Forbidden,
    Overloaded,
    ProviderError,
    RequestRefused,
    StorageUnavailable,
    TooMany,
    Unauthorized,
)
from turnstream.extensions.openai_api.objects import Json, failure_of
from turnstream.kit.requirements import sentence
from turnstream.libraries.dialects.failures import naming_block
from turnstream.libraries.dialects.streams import wait_headers
from turnstream.llm.provider import report_account

# Maps the fields of a turn's options to their names in the Responses API.
_RENAMED = {
    "blocks": "input",
    "labels": "metadata",
    "limits.max_calls": "max_tool_calls",
    "output": "text.format",
    "params.max_tokens": "max_output_tokens",
    "params.output_config": "reasoning",
    "params.verbosity": "text.verbosity",
    "parent_id": "previous_response_id",
    "system_prompt": "instructions",
}
# Maps the same fields to their names in chat completions.
_RENAMED_OF_CHAT = {
    "output.schema": "response_format.json_schema.schema",
    **_RENAMED,
    "blocks": "messages",
    "input": "messages",
    "output": "response_format",
    "params.max_tokens": "max_completion_tokens",
    "params.output_config": "reasoning_effort",
    "params.stop_sequences": "stop",
    "params.verbosity": "verbosity",
    "parent_id": "messages",
    "system_prompt": "messages",
}
_WHOLE = frozenset({"input", "messages"})  # fields whose members have other names than turnstream's
_INDEX = re.compile(r"\.(\d+)(?=\.|$)")
Rename = Callable[[str], str]


def param_of(field: str, names: Mapping[str, str] = _RENAMED) -> str:
    """Returns the name of a field in OpenAI's request."""
    for ours, theirs in names.items():
        if field == ours or field.startswith(f"{ours}."):
            field = theirs if theirs in _WHOLE else theirs + field.removeprefix(ours)
            break
    if field.startswith("tools."):
        field = field.replace(".definition", "").replace(".input_schema", ".parameters")
    return _INDEX.sub(r"[\1]", field.removeprefix("params."))


def param_of_chat(field: str) -> str:
    return param_of(field, _RENAMED_OF_CHAT)


def error_json(error: RequestRefused, rename: Rename = param_of) -> Json:
    detail, param = error.detail, None
    if error.field is not None:
        param = rename(error.field)
        detail = sentence(detail, error.field) if not isinstance(error, Invalid) else detail
        detail = detail.replace(f"`{error.field}`", naming_block(error.field, param))
    type, code = "invalid_request_error", None
    match error:
        case Unauthorized():
            code = "invalid_api_key"
        case Forbidden():
            type = "permission_error"
        case TooMany():
            type, code = "rate_limit_error", "rate_limit_exceeded"
        case _ if error.code == "unknown_model":
            code = "model_not_found"
        case _ if error.status >= 500:
            type = "server_error"
    limit = {"limit": error.limit} if isinstance(error, TooMany) else {}
    return {"error": {"message": detail, "type": type, "param": param, "code": code, **limit}}


async def refusal(request: Request, error: RequestRefused, rename: Rename = param_of) -> Response:
    """Returns the response to a refused request. The status 422 becomes 400, as at OpenAI."""
    ours = await refused(request, error)  # counts refused logins, and sets headers
    status = 404 if error.code == "unknown_model" else 400 if error.status == 422 else error.status
    headers = {name: value for name, value in ours.headers.items() if not name.startswith("content-")}
    return Response(to_json(error_json(error, rename)), status, headers, media_type="application/json")


def failed_call(error: ProviderError) -> Response:
    """Returns the response to a request whose call of the provider failed."""
    report_account(error)
    status, type, code = failure_of(error.type)
    body = {"error": {"message": error.shown, "type": type, "param": None, "code": code}}
    return Response(to_json(body), status, wait_headers(error.retry_after), "application/json")


async def storage_refusal(request: Request, error: StorageUnavailable) -> Response:
    ours = await unavailable(request, error)
    text, code = (OVERLOADED, "overloaded") if isinstance(error, Overloaded) else (STORAGE_AWAY, None)
    body = {"error": {"message": text, "type": "server_error", "param": None, "code": code}}
    headers = {"Retry-After": ours.headers["Retry-After"]}
    return Response(to_json(body), ours.status_code, headers, media_type="application/json")
