"""What the answer of a service tells the model."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from app.kit.media import IMAGES, PDF, media_type_of
from app.tools.http.client import HttpResponse
from app.tools.policy import ResultForm
from app.tools.serialise import written
from app.tools.tool import RETURNED_NOTHING, File, Outcome

_SHOWN_OF_AN_ERROR = 2000
_SHORTEST_SECRET = 6
_UNKNOWN = "application/octet-stream"
# Of the many that Python knows, some take time in the square of the length.
_CHARSETS = frozenset({"us-ascii", "iso-8859-1", "windows-1252", "utf-16"})


def outcome_of(name: str, answer: HttpResponse, results: ResultForm, secrets: Mapping[str, str]) -> Outcome:
    """A status that is no success is an error, told with the words that came with it. An image or a PDF is a file."""
    succeeded = 200 <= answer.status < 300
    if succeeded and _is_file(answer):
        return Outcome.of([File(answer.body)])
    words, failed = _told(answer, results)
    words = _hidden(words, secrets)
    if succeeded:
        nothing = "The call failed, and nothing is said of why." if failed else RETURNED_NOTHING
        return Outcome(words if words.strip() else nothing, is_error=failed)
    shown = words if len(words) <= _SHOWN_OF_AN_ERROR else f"{words[:_SHOWN_OF_AN_ERROR]}…"
    return Outcome(f"{name} answered {phrase(answer.status)}" + (f": {shown}" if shown.strip() else "."), is_error=True)


def phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _told(answer: HttpResponse, results: ResultForm) -> tuple[str, bool]:
    """The `text` or the `output` of a JSON object, and whether `is_error`; any other text as it is."""
    text = _text(answer)
    if text is None:
        return "The answer is not text.", True
    match _json(text):
        case {"text": str(words)} | {"output": str(words)} as given:
            return words, given.get("is_error") is True
        case {"output": output} as given:
            return "" if output is None else written(output, results), given.get("is_error") is True
        case _:
            return text, False


def _is_file(answer: HttpResponse) -> bool:
    """An image or a PDF, unless it is said to be something else, or can be read as text where nobody says anything."""
    found, said = media_type_of(answer.body), answer.media_type or _UNKNOWN
    if found not in IMAGES | {PDF}:
        return False
    return said == PDF or said.startswith("image/") or (said == _UNKNOWN and _text(answer) is None)


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


def _hidden(text: str, secrets: Mapping[str, str]) -> str:
    """Without the secrets that a service may repeat when it complains of them."""
    for value in secrets.values():
        for secret in (value, value.rpartition(" ")[2]):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[hidden]")
    return text
