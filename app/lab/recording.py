"""What went over the wire in one model call: the request, and the answer as it was read, piece by piece.

A recording is a file of JSON lines: the call, the request, the head of the answer, each read with its time, the end.
Bytes that are UTF-8 stand in it as text, others as base64; keys are overwritten with stars.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from app.llm.provider import ModelCall

# How the answer came to its end: by itself, because we hung up, or because the connection failed.
Ending = Literal["whole", "closed", "failed"]

_HEADERS = re.compile(rb'(?<!\\)"headers"\s*:\s*\{([^{}]*)\}', re.IGNORECASE)
_VALUE = re.compile(rb':\s*"((?:[^"\\]|\\.)+)"')
_SECRET = re.compile(
    rb'(?<!\\)"(?:authorization|authorization_token|api_key)"\s*:\s*"((?:[^"\\]|\\.)+)"', re.IGNORECASE
)


class RecordedChunk(NamedTuple):
    """`at` is in seconds after the request."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """What the transport raised: the name of the class, and its words."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One model call. Without a `status` nothing was answered; times are in seconds after the request."""

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
    """The same length, with stars for `secrets` and for what stands where secrets do."""
    for secret in secrets:
        body = body.replace(secret, b"*" * len(secret))
    body = _HEADERS.sub(lambda found: _VALUE.sub(_starred, found[0]), body)
    return _SECRET.sub(_starred, body)


def _starred(found: re.Match[bytes]) -> bytes:
    whole, start = found[0], found.start()
    return whole[: found.start(1) - start] + b"*" * len(found[1]) + whole[found.end(1) - start :]


def redact_reads(reads: Sequence[RecordedChunk], secrets: Sequence[bytes]) -> tuple[RecordedChunk, ...]:
    """A secret may lie across two reads."""
    body = redact(b"".join(read.data for read in reads), secrets)
    places = accumulate((len(read.data) for read in reads), initial=0)
    return tuple(RecordedChunk(read.at, body[a:b]) for read, (a, b) in zip(reads, pairwise(places), strict=True))


def encode(recording: Recording) -> bytes:
    call = recording.call
    named = {"turn": str(call.turn), "round": call.round, "attempt": call.attempt, "model": call.model} if call else {}
    lines: list[Mapping[str, Any]] = [
        {**named, "began": recording.began, "url": recording.url},
        {"request": _said(recording.request)},
    ]
    if recording.status is not None:
        lines.append({"at": recording.head_at, "status": recording.status, "headers": recording.headers})
    lines += [{"at": read.at, "read": _said(read.data)} for read in recording.reads]
    failure = recording.failure
    why = {"type": failure.type, "message": failure.message} if failure else {}
    lines.append({"at": recording.ended_at, "ending": recording.ending, **why})
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def decode(file: bytes) -> Recording:
    """Raises ValueError for what is no recording, or not a whole one."""
    try:
        first, request, *lines, end = (msgspec.json.decode(line) for line in file.splitlines())
        head = lines.pop(0) if lines and "status" in lines[0] else {}
        return Recording(
            began=first["began"],
            url=first["url"],
            request=_heard(request["request"]),
            call=_call_of(first),
            status=head.get("status"),
            headers=head.get("headers", {}),
            head_at=head.get("at", 0.0),
            reads=tuple(RecordedChunk(line["at"], _heard(line["read"])) for line in lines),
            ending=end["ending"],
            ended_at=end["at"],
            failure=Failure(end["type"], end["message"]) if "type" in end else None,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no recording: {error!r}") from None


def _call_of(first: Mapping[str, Any]) -> ModelCall | None:
    if "turn" not in first:
        return None
    return ModelCall(UUID(first["turn"]), first["round"], first["attempt"], first["model"])


def _said(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _heard(said: str | Mapping[str, str]) -> bytes:
    return said.encode() if isinstance(said, str) else b64decode(said["base64"])
