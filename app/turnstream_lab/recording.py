"""Recordings of model calls: the bytes of the request, and the bytes and the time of each read of the response.

A file has lines of JSON: the call, the request, the head of the response, the reads, the end. Valid UTF-8 is stored as
text, other bytes as base64. Secrets are replaced by stars.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from turnstream.llm.provider import ModelCall

# How the response ended: it was complete, we closed the connection, or the connection failed.
Ending = Literal["whole", "closed", "failed"]

_SHORTEST_SECRET = 8  # minimum bytes of a secret that is replaced everywhere
_HEADERS = re.compile(rb'(?<!\\)"headers"\s*:\s*\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\}', re.IGNORECASE)
_VALUE = re.compile(rb':\s*"((?:[^"\\]|\\.)+)"')
_SECRET = re.compile(
    rb'(?<!\\)"(?:authorization|authorization_token|api_key)"\s*:\s*"((?:[^"\\]|\\.)+)"', re.IGNORECASE
)


class RecordedChunk(NamedTuple):
    """The bytes of one read from the network, `at` seconds after the request."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that the transport raised: class name and message."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One model call. If `status` is None, there was no response. Times are in seconds after the request."""

    began: str
    url: str
    request: bytes
    call: ModelCall | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    head_at: float = 0.0
    reads: Sequence[RecordedChunk] = ()
    ending: Ending = "closed"
    ended_at: float = 0.0
    failure: Failure | None = None

    @property
    def body(self) -> bytes:
        return b"".join(read.data for read in self.reads)


def redact(body: bytes, secrets: Sequence[bytes] = ()) -> bytes:
    """Replaces `secrets`, and values of members that usually contain secrets, with the same number of stars. A short
    secret, such as `none` for a local server, is replaced only in such members, because it may be a part of words.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            body = body.replace(secret, b"*" * len(secret))
    body = _HEADERS.sub(lambda found: _VALUE.sub(_starred, found[0]), body)
    return _SECRET.sub(_starred, body)


def _starred(found: re.Match[bytes]) -> bytes:
    whole, start = found[0], found.start()
    return whole[: found.start(1) - start] + b"*" * len(found[1]) + whole[found.end(1) - start :]


def redact_reads(reads: Sequence[RecordedChunk], secrets: Sequence[bytes]) -> tuple[RecordedChunk, ...]:
    """Redacts the whole body, because a secret may span two reads, and divides the body into the same reads again."""
    body = redact(b"".join(read.data for read in reads), secrets)
    places = accumulate((len(read.data) for read in reads), initial=0)
    return tuple(RecordedChunk(read.at, body[a:b]) for read, (a, b) in zip(reads, pairwise(places), strict=True))


def encode(recording: Recording) -> bytes:
    call = recording.call
    named = {"turn": str(call.turn), "round": call.round, "attempt": call.attempt, "model": call.model} if call else {}
    lines: list[Mapping[str, Any]] = [
        {**named, "began": recording.began, "url": recording.url},
        {"request": _to_json(recording.request)},
    ]
    if recording.status is not None:
        lines.append({"at": recording.head_at, "status": recording.status, "headers": recording.headers})
    lines += [{"at": read.at, "read": _to_json(read.data)} for read in recording.reads]
    failure = recording.failure
    why = {"type": failure.type, "message": failure.message} if failure else {}
    lines.append({"at": recording.ended_at, "ending": recording.ending, **why})
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def decode(file: bytes) -> Recording:
    """Raises ValueError for a file that is not a complete recording."""
    try:
        first, request, *lines, end = (msgspec.json.decode(line) for line in file.splitlines())
        head = lines.pop(0) if lines and "status" in lines[0] else {}
        call = None
        if "turn" in first:
            call = ModelCall(UUID(first["turn"]), first["round"], first["attempt"], first["model"])
        return Recording(
            began=first["began"],
            url=first["url"],
            request=_from_json(request["request"]),
            call=call,
            status=head.get("status"),
            headers=head.get("headers", {}),
            head_at=head.get("at", 0.0),
            reads=tuple(RecordedChunk(line["at"], _from_json(line["read"])) for line in lines),
            ending=end["ending"],
            ended_at=end["at"],
            failure=Failure(end["type"], end["message"]) if "type" in end else None,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"The file is no recording: {error!r}.") from None


def _to_json(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _from_json(value: str | Mapping[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])
