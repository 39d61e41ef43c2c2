"""Recorded provider streams, and functions that convert them to rows and to requests."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.canned import Answer
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.domain.results import ResultPart, joined_texts, layout_of
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import Message, ModelRequest, Provider

Json = dict[str, Any]

FOLDER = Path(os.environ.get("RECORDED_STREAMS", Path(__file__).parents[2].parent / "shared" / "recordings"))
# The folder and its siblings `recordings-2`, `recordings-3`, …, which have the same layout and other files.
FOLDERS = [FOLDER, *(each for each in sorted(FOLDER.parent.glob("recordings*")) if each != FOLDER and each.is_dir())]
REQUEST = TurnRequest("recorded")
ASKED = ModelRequest("a-model", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))

needs_recordings = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no recordings in {FOLDER}: set RECORDED_STREAMS to their folder"
)


@cache
def manifest() -> Json:
    """Lists the recordings of all folders. If several folders have the same file or session, the first folder
    applies.
    """
    files: dict[str, Json] = {}
    sessions: dict[str, Json] = {}
    for path in (folder / "MANIFEST.json" for folder in reversed(FOLDERS)):
        if path.exists():
            found = json.loads(path.read_text("utf-8"))
            files |= {entry["file"]: entry for entry in found["files"]}
            sessions |= found["sessions"]
    return {"files": [*files.values()], "sessions": sessions}


def streams(kind: str = "anthropic") -> list[str]:
    """Lists every recorded stream of an API, including the streams of sessions."""
    return [entry["file"] for entry in manifest()["files"] if entry["kind"] == kind]


def errors() -> list[str]:
    return [e["file"] for e in manifest()["files"] if e["kind"] == "error" and e["provider"] == "anthropic"]


def errors_of_others() -> list[str]:
    return [e["file"] for e in manifest()["files"] if e["kind"] == "error" and e["provider"] != "anthropic"]


def sessions(kind: str = "anthropic") -> list[str]:
    """Lists the sessions whose requests were recorded."""
    known = manifest()["sessions"].items()
    return [name for name, one in known if one["kind"] == kind and one["requests_recorded"]]


def sessions_without_requests(kind: str = "anthropic") -> list[str]:
    """Lists the sessions of which only the replies were recorded."""
    known = manifest()["sessions"].items()
    return [name for name, one in known if one["kind"] == kind and not one["requests_recorded"]]


def asked(session: str, number: int) -> Json:
    """Returns the recorded request of a round."""
    found: Json = json.loads(read(f"sessions/{session}/{number:02}-request.json"))
    return found


def rounds_of(session: str) -> int:
    return len(manifest()["sessions"][session]["files"])


def read(file: str) -> bytes:
    return next(path for folder in FOLDERS if (path := folder / file).exists()).read_bytes()


def oracle(file: str) -> Json:
    """Returns the SDK's result for a stream, or the result of the SDK's beta accumulator if that keeps more."""
    both = oracles(file)
    found: Json = both["ga"] if both["beta"] == "same as ga" else both["beta"]
    return found


def oracles(file: str) -> Json:
    """Returns the SDK's results by stream. A stream with another framing gets the results of its original, because SDKs
    cannot read every framing that the standard allows.
    """
    file = variants().get(file, file)
    found: Json = json.loads(read(f"oracle/{file}.json"))
    return found


@cache
def variants() -> Mapping[str, str]:
    files = manifest()["files"]
    known, origins = {entry["file"] for entry in files}, {e["file"]: e["source"].get("variant_of") for e in files}
    return {file: origin for file, origin in origins.items() if origin in known}


def events(body: bytes) -> list[Any]:
    """Returns the data of a stream's events, parsed by the rules of the standard."""
    lines = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[Any] = []
    data: list[bytes] = []
    for line in (*lines, b""):
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and data:
            with suppress(ValueError):  # `[DONE]`, or an event that the recording truncates
                found.append(json.loads(b"\n".join(data)))
            data = []
    return found


# --- equal forms of the same data -----------------------------------------------------------------------------


def plain(block: Mapping[str, Any]) -> Json:
    """Returns a block without members that have no meaning: cache marks, empty citations, `is_error: false`, the
    ordinary caller.
    """
    nothing: Json = {
        "caller": ({"type": "direct"},),
        "citations": (None, []),
        "encrypted_content": (None,),
        "is_error": (False,),
    }
    members = {k: v for k, v in block.items() if k != "cache_control" and v not in nothing.get(k, ())}
    if members["type"] == "tool_result":
        members["content"] = [plain(inner) for inner in content(members.get("content") or [])]
    return members


def content(said: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": said}] if isinstance(said, str) else said


def conversation(messages: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    """Merges adjacent messages of one role, as the provider does."""
    merged: list[tuple[str, list[Json]]] = []
    for message in messages:
        blocks = [plain(block) for block in content(message["content"])]
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], blocks))
    return merged


@cache
def is_edited(session: str) -> bool:
    """Returns whether the client changed replies before it sent them back. This server sends the provider's own bytes
    back.
    """
    requests = [conversation(asked(session, number)["messages"]) for number in range(1, rounds_of(session) + 1)]
    replies = [_reply(session, number) for number in range(1, rounds_of(session))]
    said = [blocks for role, blocks in requests[-1][len(requests[0]) :] if role == "assistant"]
    return said != [blocks for blocks in replies if blocks]


def _reply(session: str, number: int) -> list[Json]:
    message = oracle(f"sessions/{session}/{number:02}-response.sse")["message"]
    return [plain(block) for block in message["content"]]


def is_one_chat(session: str) -> bool:
    """Returns whether each request continues the previous request. A client may also begin another chat, or call other
    models.
    """
    requests = [conversation(asked(session, number)["messages"]) for number in range(1, rounds_of(session) + 1)]
    return all(
        [role for role, _ in now[: len(before)]] == [role for role, _ in before]
        and len(now) - len(before) in {1, 2}
        and users_of(now[: len(before)]) == users_of(before)
        for before, now in pairwise(requests)
    )


def users_of(said: Sequence[tuple[str, list[Json]]]) -> list[list[Json]]:
    return [blocks for role, blocks in said if role == "user"]


# --- a session as a path of turns ----------------------------------------------------------------------------


def path_of(said: Sequence[tuple[str, list[Json]]]) -> list[Turn]:
    """Returns the turns that a first request contains, with the turn for its answer."""
    path: list[Turn] = []
    for role, blocks in said:
        if role == "user":
            hear(path, blocks)
        else:
            stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
            path = answer(path, [_row(block) for block in blocks], stop)
    return path


def hear(path: list[Turn], blocks: Sequence[Json]) -> None:
    """Adds the user's side: results belong to the turn that called the tools, and all other blocks become a user
    turn.
    """
    results = [_result(block) for block in blocks if block["type"] == "tool_result"]
    words = [_row(block) for block in blocks if block["type"] != "tool_result"]
    if results:
        path[-1] = _with(path[-1], results, path[-1].rounds[-1].number)
    if words:
        path.append(replace(_turn("user"), blocks=tuple(words)))


def _result(said: Json) -> Block:
    """Returns a tool result as the rows store it."""
    parts: list[ResultPart] = [part.get("text") or part for part in content(said.get("content") or [])]
    failed = said.get("is_error", False)
    return Block(0, 0, 1, "tool_result", joined_texts(parts), layout_of(parts), said["tool_use_id"], "look", failed)


def answer(path: list[Turn], blocks: Sequence[Block], stop_reason: str | None) -> list[Turn]:
    """Returns the path after one more round."""
    *before, turn = running(path)
    number = len(turn.rounds) + 1
    turn = replace(turn, rounds=(*turn.rounds, Round(number, 1, stop_reason=stop_reason, sealed_by=1)))
    return [*before, _with(turn, blocks, number)]


def running(path: list[Turn]) -> list[Turn]:
    return path if path and path[-1].role == "assistant" else [*path, _turn("assistant")]


class Heard:
    """One answer of an adapter, read to its end or to its failure."""

    def __init__(self) -> None:
        self.accumulator = Accumulator(round=1, attempt=1, first_index=0)
        self.changes: list[object] = []
        self.error: ProviderError | None = None

    async def listen(self, provider: Provider, request: ModelRequest = ASKED) -> "Heard":
        try:
            async for parts in provider.stream(request):
                self.changes += self.accumulator.feed(parts)
        except ProviderError as error:
            self.error = error
        self.blocks = closed_blocks(self.accumulator, self.changes)
        return self


def taken_in(wire: Wire, body: bytes, sizes: Iterator[int]) -> tuple[object, ...]:
    """Returns the complete state after `body`, which is fed in pieces of these sizes."""
    accumulator, changes = Accumulator(1, 1, 0), list[object]()
    for piece in pieces(body, sizes):
        changes += accumulator.feed(wire.feed(piece))
    changes += accumulator.feed(wire.end())
    blocks = closed_blocks(accumulator, changes)
    return blocks, accumulator.stop_reason, accumulator.usage, accumulator.data, accumulator.ended, repr(wire.failure)


def reply_by(wire: Wire, session: str, number: int) -> tuple[list[Block], str | None]:
    """Returns a recorded reply, and its stop reason."""
    accumulator = Accumulator(number, 1, 0)
    body = read(f"sessions/{session}/{number:02}-response.sse")
    changes = accumulator.feed([*wire.feed(body), *wire.end()])
    return closed_blocks(accumulator, changes), accumulator.stop_reason


def recorded_error(file: str) -> tuple[Json, Answer]:
    """Returns a recorded exchange that failed, and the answer with which a server repeats its part."""
    recorded: Json = json.loads(read(file))
    hop = {"content-length", "transfer-encoding", "connection"}
    headers = {name: value for name, value in recorded["headers"].items() if name not in hop}
    return recorded, Answer(recorded["body"].encode(), recorded["status"], headers)


def closed_blocks(accumulator: Accumulator, changes: Sequence[object]) -> list[Block]:
    return [change for change in (*changes, *accumulator.interrupt()) if isinstance(change, Block)]


def pieces(body: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    place = 0
    while place < len(body):
        size = next(sizes)
        yield body[place : place + size]
        place += size


def _turn(role: Any) -> Turn:
    return Turn(UUID(int=1), UUID(int=0), None, role, "running", 1, REQUEST)


def _with(turn: Turn, blocks: Sequence[Block], round: int) -> Turn:
    start = len(turn.blocks)
    rows = (replace(block, index=start + place, round=round) for place, block in enumerate(blocks))
    return replace(turn, blocks=(*turn.blocks, *rows))


def _row(block: Json) -> Block:
    text = block.get("text") or block.get("thinking") or (json.dumps(block["input"]) if "input" in block else "")
    return Block(
        index=0,
        round=0,
        attempt=1,
        type=block["type"],
        text=text,
        data=json.dumps(block),
        tool_use_id=block.get("tool_use_id") or block.get("id"),
        name=block.get("name"),
        is_error=bool(block.get("is_error")),
    )
