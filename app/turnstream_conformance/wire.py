"""The wire format of docs/protocol.md: events as bytes and back, and the assembly of a turn. The kit has separate
code for this, so that it shares no error with the server or client that it checks.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

ENDS = {"turn_complete": "complete", "turn_cancelled": "cancelled", "turn_error": "error"}


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event. An event without an id is a notice. An event without a name has only an id, for example at
    the start of a feed.
    """

    id: str | None
    name: str
    data: Json

    def frame(self) -> bytes:
        lines = [f"id: {self.id}"] if self.id is not None else []
        lines += [f"event: {self.name}", f"data: {json.dumps(self.data, ensure_ascii=False, separators=(',', ':'))}"]
        return ("\n".join(lines) + "\n\n").encode()


class Parser:
    """Converts bytes, in pieces of any size, to events. Also counts the comments. Raises ValueError for an invalid
    event.
    """

    def __init__(self) -> None:
        self.comments = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        *frames, self._rest = (self._rest + chunk).split(b"\n\n")
        for frame in frames:
            lines = frame.decode().split("\n")
            self.comments += sum(line.startswith(":") for line in lines)
            fields = dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))
            if "data" in fields or "id" in fields:
                yield Event(fields.get("id"), fields.get("event", ""), json.loads(fields.get("data", "{}")))


class Disorder(ValueError):
    """An event does not fit the events before it."""


def assemble(events: Iterable[Event], blocks: Iterable[Json] = ()) -> tuple[list[Json], str]:
    """Applies the events to `blocks`. Returns the new blocks, and the status of the turn. Raises Disorder."""
    found, status = [dict(block) for block in blocks], "running"
    for event in events:
        data = event.data
        match event.name:
            case "block_start":
                if data["index"] != len(found):
                    raise Disorder(f"block {data['index']} began where block {len(found)} was next")
                found.append({**data, "text": ""})
            case "block_delta":
                have = len(found[data["index"]]["text"])
                if data["index"] != len(found) - 1 or data["offset"] != have:
                    raise Disorder(f"text for offset {data['offset']} of block {data['index']} came at {have}")
                found[-1]["text"] += data["text"]
            case "block_stop":
                found[data["index"]].pop("open", None)
                found[data["index"]] |= data
            case "reset":
                del found[data["index"] :]
            case end if end in ENDS:
                status = ENDS[end]
            case _:
                pass
    return found, status


def difference(blocks: Sequence[Json], expected: Sequence[Json]) -> str:
    """Describes the first difference between two lists of blocks, in the members that every client must have. Empty if
    there is no difference.
    """
    for index, (one, other) in enumerate(zip(blocks, expected, strict=False)):
        for member in ("type", "text", "input", "is_error"):
            if one.get(member) != other.get(member):
                return f"`{member}` of block {index} is {_short(one.get(member))}, not {_short(other.get(member))}"
    return "" if len(blocks) == len(expected) else f"there are {len(blocks)} blocks, not {len(expected)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"
