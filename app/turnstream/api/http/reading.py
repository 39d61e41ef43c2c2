"""Reads the path, query, body and idempotency key of a request, and refuses invalid values."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

from pydantic import ValidationError
from starlette.requests import Request

from turnstream.api.http.endpoint import Query
from turnstream.api.http.errors import BadRequest, TooLarge, UnsupportedMedia
from turnstream.api.http.validation import invalid
from turnstream.api.schemas.fields import Body
from turnstream.api.services import services_of
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.kit.json_values import MOST_VALUES, has_too_many_values
from turnstream.kit.offload import offload
from turnstream.kit.requirements import ID_EXAMPLE
from turnstream.kit.text import unstorable
from turnstream.storage.chats.exchanges import IdempotencyKey

BodyModel = TypeVar("BodyModel", bound=Body)

_NUMBER = re.compile("[0-9]{1,9}")
_MOST_PATH = 1024  # bytes
# Control characters, and the replacement character of invalid UTF-8: they make different paths look alike.
_AMBIGUOUS = re.compile("[\x00-\x1f\x7f\ufffd]")


def id_of(request: Request, name: str) -> UUID:
    """Returns the id in the path. Raises NotFound for a text that is not an id."""
    text = request.path_params[name]
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {name} {text}; `{name}` is an id, such as {ID_EXAMPLE}.") from None


def check_path(path: str, field: str = "path") -> None:
    """Raises RequestRefused for a document's path that could be read in two ways."""
    ambiguous = _AMBIGUOUS.search(path) or unstorable(path) or len(path.encode()) > _MOST_PATH
    if ambiguous or not all(part.strip(".") or len(part) > 2 for part in path.split("/")):
        raise RequestRefused(
            f"`{field}` must be a path such as notes/today.md: at most {_MOST_PATH} bytes, no slash at its ends or"
            " after another, no part . or .., no control characters.",
            field=field,
        )


async def read_bytes(request: Request, most: int | None = None) -> bytes:
    """Reads the body. Raises TooLarge as soon as it exceeds `most` bytes; the default is the limit of a JSON body."""
    most = most or services_of(request).http.max_body_bytes
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise TooLarge(f"The body must have at most {most:,} bytes.")
        chunks.append(chunk)
    return await offload(size, b"".join, chunks)


async def read_body(request: Request, model: type[BodyModel]) -> tuple[BodyModel, bytes]:
    """Returns the body, validated by `model`, and its bytes. An empty body is read as {}."""
    body = await read_bytes(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise UnsupportedMedia("The body must be JSON, sent with Content-Type: application/json (with curl: --json).")
    return await offload(len(body), _checked, model, body), body


def _checked(model: type[BodyModel], body: bytes) -> BodyModel:
    if has_too_many_values(body):
        most = f"{MOST_VALUES:,} strings, and as many items of lists and objects"
        raise TooLarge(f"The body must have at most {most}.")
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise _refusal(model, body, error) from None


def _refusal(model: type[Body], body: bytes, error: ValidationError) -> RequestRefused:
    if error.error_count() > 1:  # invalid JSON causes only one error
        return invalid(model, error)
    first = error.errors()[0]
    if first["type"] != "json_invalid":
        return invalid(model, error)
    if "hex escape" in first["msg"]:
        # A lone surrogate is an error of one field, not of the body. `json` accepts it, so the model finds the field.
        with suppress(ValueError, RecursionError):
            try:
                model.model_validate(json.loads(body.decode()), strict=False)
            except ValidationError as found:
                return invalid(model, found)
    return BadRequest(f"The body must be JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")


def idempotency_key_of(request: Request, body: bytes) -> IdempotencyKey | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise RequestRefused("`Idempotency-Key` must have 1 to 255 printable characters.", field="Idempotency-Key")
    digest = hashlib.sha256(b"\0".join([request.method.encode(), request.url.path.encode(), body]))
    return IdempotencyKey(key, digest.digest())


def check_query(request: Request, known: Sequence[Query]) -> None:
    """Raises RequestRefused for an unknown parameter, such as a misspelt name. Names that begin with `_` or `utm_` are
    ignored: clients add such parameters to bypass caches, and proxies and links add them to trace requests.
    """
    # Not `request.query_params`, which may be outdated: authentication removes its token from the query.
    text = request.scope["query_string"].decode("latin-1")
    if not text:
        return
    names = [query.name for query in known]
    for name, _ in parse_qsl(text, keep_blank_values=True):
        if name not in names and not name.startswith(("_", "utm_")):
            these = f"known are {', '.join(f'`{each}`' for each in names)}" if names else "the call has none"
            raise RequestRefused(f"`{name}` is no parameter of this call; {these}.", field=name)


def id_in_query(request: Request, name: str) -> UUID | None:
    """Returns the id of a turn in the query, or None if it is absent. Raises RequestRefused."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        detail = f"`{name}` must be the id of a turn of this chat, such as {ID_EXAMPLE}."
        raise RequestRefused(detail, field=name) from None


def flag_of(request: Request, name: str) -> bool:
    """Returns the value of a true-or-false parameter; False if it is absent. Raises RequestRefused."""
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise RequestRefused(f"`{name}` must be true or false.", field=name)
    return text == "true"


def frames_of(request: Request) -> str | None:
    """Returns `never` if the client wants each delta at once, else None. Raises RequestRefused."""
    text = request.query_params.get("frames")
    if text not in {None, "never"}:
        raise RequestRefused("`frames` must be never, or be left out.", field="frames")
    return text


def limit_of(request: Request, default: int, most: int) -> int:
    text = request.query_params.get("limit", str(default))
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise RequestRefused(f"`limit` must be a whole number from 1 to {most}.", field="limit")
    return int(text)
