"""What a request says: its path, its query, its body and its key; and what is wrong with them."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from app.api.http.errors import BadRequest, Invalid, TooLarge, UnsupportedMedia
from app.api.schemas.fields import Body
from app.api.schemas.tools import ALTERNATIVES, NAME
from app.api.services import services_of
from app.domain.errors import NotFound, RequestRefused
from app.kit.text import storable
from app.storage.exchanges import IdempotencyKey

BodyModel = TypeVar("BodyModel", bound=Body)

_NUMBER = re.compile("[0-9]{1,9}")


def id_of(request: Request, name: str) -> UUID:
    """The id in the path. What is no id names nothing."""
    text = request.path_params[name]
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no {name} {text}") from None


async def read_bytes(request: Request, most: int | None = None) -> bytes:
    """Raises TooLarge as soon as the body is."""
    most = most or services_of(request).http.max_body_bytes
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise TooLarge(f"the body is larger than {most:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def read_body(request: Request, model: type[BodyModel]) -> tuple[BodyModel, bytes]:
    """The body checked against `model`, and its bytes. An empty body counts as {}."""
    body = await read_bytes(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise UnsupportedMedia("send JSON with Content-Type: application/json (with curl: --json)")
    try:
        return model.model_validate_json(body or b"{}"), body
    except ValidationError as error:
        raise _refusal(model, body, error) from None


def _refusal(model: type[Body], body: bytes, error: ValidationError) -> RequestRefused:
    first = error.errors()[0]
    if first["type"] != "json_invalid":
        return invalid(error)
    if "hex escape" in first["msg"]:
        # A lone surrogate is wrong in one field, not in the whole document: say in which.
        with suppress(ValueError, RecursionError):
            try:
                model.model_validate(json.loads(body.decode()), strict=False)
            except ValidationError as found:
                return invalid(found)
    return BadRequest(first["msg"])


def invalid(error: ValidationError) -> Invalid:
    return Invalid(
        [
            {
                "field": storable(".".join(_steps(problem))) or "(body)",
                "message": storable(_message(problem)),
            }
            for problem in error.errors(include_url=False, include_input=False)
        ]
    )


def _message(problem: ErrorDetails) -> str:
    match problem["type"]:
        case "union_tag_not_found":
            return "is missing, or is none: it says what the rest of the object is"
        case "union_tag_invalid":
            kinds = str(problem["ctx"]["expected_tags"]).removeprefix(f"'{NAME}', ")
            return f"must be one of {kinds}"
        case _:
            return problem["msg"].removeprefix("Value error, ")


def _steps(problem: ErrorDetails) -> Iterator[str]:
    """Without the name of the alternative that an item of a list was taken for."""
    location = problem["loc"]
    for before, step in zip((None, *location), location, strict=False):
        if not (isinstance(before, int) and step in ALTERNATIVES):
            yield str(step)
    if problem["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        yield "type"


def idempotency_key_of(request: Request, body: bytes) -> IdempotencyKey | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise RequestRefused("a key has 1 to 255 printable characters", field="Idempotency-Key")
    asked = b"\0".join([request.method.encode(), request.url.path.encode(), body])
    return IdempotencyKey(key, hashlib.sha256(asked).digest())


def id_in_query(request: Request, name: str) -> UUID | None:
    """The id of a turn in the query. Raises RequestRefused."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        example = "018f2c1a-5b7e-7cc1-9d3a-2f6b8f3c9a10"
        raise RequestRefused(
            f"`{name}` must be the id of a turn of this chat, such as {example}.", field=name
        ) from None


def limit_of(request: Request, default: int, most: int) -> int:
    text = request.query_params.get("limit", str(default))
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise RequestRefused(f"must be a number from 1 to {most}", field="limit")
    return int(text)
