"""Translation of the answers of services into outcomes."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from app.kit.media import IMAGES, PDF, media_type_of
from app.tools.http.client import HttpResponse
from app.tools.policy import ResultForm
from app.tools.serialize import serialize
from app.tools.tool import RETURNED_NOTHING, File, Outcome

_MAX_ERROR_CHARS = 2000
_SHORTEST_SECRET = 6  # shorter values would hide ordinary words
_UNKNOWN = "application/octet-stream"
# Some of the many codecs of Python need quadratic time.
_CHARSETS = frozenset({"us-ascii", "iso-8859-1", "windows-1252", "utf-16"})


def outcome_of(name: str, answer: HttpResponse, results: ResultForm, secrets: Mapping[str, str]) -> Outcome:
    """The outcome of an answer. An image or a PDF is a file; a status that is not 2xx is an error, with its text."""
    succeeded = 200 <= answer.status < 300
    if succeeded and _is_file(answer):
        return Outcome.of([File(answer.body)])
    text, failed = _read(answer, results)
    text = _without(secrets, text)
    if succeeded:
        nothing = "The call failed, and nothing is said of why." if failed else RETURNED_NOTHING
        return Outcome(text if text.strip() else nothing, is_error=failed)
    shown = text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
    return Outcome(f"{name} answered {phrase(answer.status)}" + (f": {shown}" if shown.strip() else "."), is_error=True)


def phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _read(answer: HttpResponse, results: ResultForm) -> tuple[str, bool]:
    """The `text` or `output` of a JSON object and its `is_error`, or any other text unchanged."""
    text = _text(answer)
    if text is None:
        return "The answer is not text.", True
    match _json(text):
        case {"text": str(inner)} | {"output": str(inner)} as answered:
            return inner, answered.get("is_error") is True
        case {"output": output} as answered:
            return "" if output is None else serialize(output, results), answered.get("is_error") is True
        case _:
            return text, False


def _is_file(answer: HttpResponse) -> bool:
    """True for the bytes of an image or a PDF, if the header agrees; without a header, if they are not text."""
    found, declared = media_type_of(answer.body), answer.media_type or _UNKNOWN
    if found not in IMAGES | {PDF}:
        return False
    return declared == PDF or declared.startswith("image/") or (declared == _UNKNOWN and _text(answer) is None)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(answer: HttpResponse) -> str | None:
    charset = (answer.charset or "").lower()
    try:
        return answer.body.decode(charset if charset in _CHARSETS else "utf-8-sig")
    except UnicodeDecodeError:
        return None


def _without(secrets: Mapping[str, str], text: str) -> str:
    """Hides the secrets in a text: a service may repeat them when it refuses them."""
    for value in secrets.values():
        for secret in (value, value.rpartition(" ")[2]):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[hidden]")
    return text
