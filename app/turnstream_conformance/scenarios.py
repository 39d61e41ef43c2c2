"""The scenarios for clients. Each scenario has a turn, and the answers to the client's requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from turnstream_conformance.wire import Event, Json

Step = tuple[str, Json]
Texts = Sequence[str]

# --- turns -----------------------------------------------------------------------------------------------------------


def numbered(steps: Sequence[Step]) -> list[Event]:
    """Returns the steps of a turn as events with ids like those of a server. Notices and unknown events have no id."""
    events: list[Event] = []
    attempt, place, offset = 1, 0, 0
    for name, data in steps:
        if name in _NOTICES or name.startswith("x_"):
            events.append(Event(None, name, data))
            continue
        if name == "reset":
            attempt = data["attempt"]
        if name == "block_delta":
            offset = data["offset"] + len(data["text"])
        else:
            place, offset = place + 1, 0
        events.append(Event(f"{attempt}-{place}-{offset}", name, data))
    return events


_NOTICES = {"status", "retry", "tool_progress", "tool_output", "access_ended"}


def _block(index: int, round: int, type: str, *texts: str, start: Json | None = None, **stop: object) -> Iterator[Step]:
    yield "block_start", {"index": index, "round": round, "type": type, **(start or {})}
    length = 0
    for text in texts:
        yield "block_delta", {"index": index, "offset": length, "text": text}
        length += len(text)
    yield "block_stop", {"index": index, **stop}


_START: Step = ("turn_start", {"model": "scripted", "attempt": 1, "status": "running"})
_USAGE: Json = {"input_tokens": 20, "output_tokens": 30}
_END: Step = ("turn_complete", {"stop_reason": "end_turn", "usage": _USAGE})


def _round(number: int) -> Step:
    return "round_start", {"round": number, "messages": 2 * number - 1, "answered": []}


def _sealed(number: int, stop_reason: str) -> Step:
    return "round_stop", {"round": number, "stop_reason": stop_reason, "usage": _USAGE}


# Characters of one to four bytes, a line break within JSON, and characters that some languages treat as line breaks.
_TIDE = ("Tide 潮 🌊🌊 is é", " at 4:20.\r\n\r\ndata: no field\n", "\u2028\u2029\x85\x0b\x0cdone")

TURN: Sequence[Step] = (
    _START,
    _round(1),
    *_block(0, 1, "thinking", "The tide? ", "I look it up.", signature="c2ln"),
    *_block(1, 1, "text", *_TIDE),
    *_block(
        2,
        1,
        "tool_use",
        '{"port":',
        '"Büsum"}',
        start={"id": "toolu_1", "name": "tide_table"},
        input={"port": "Büsum"},
    ),
    _sealed(1, "tool_use"),
    *_block(3, 1, "tool_result", "3.4 m", start={"tool_use_id": "toolu_1", "name": "tide_table"}, is_error=False),
    _round(2),
    *_block(4, 2, "text", "High ", "tide."),
    _sealed(2, "end_turn"),
    _END,
)


def _texts(*texts: str) -> Sequence[Step]:
    return (_START, _round(1), *_block(0, 1, "text", *texts), _sealed(1, "end_turn"), _END)


def _reported() -> Sequence[Step]:
    """Returns a turn that starts with a report on a call of an earlier turn, and gets another report after its first
    round.
    """
    call: Json = {"job": "0198c0de-0000-7000-8000-000000000001", "tool_use_id": "toolu_1", "name": "dredge"}
    first, second = (
        _block(index, round, "report", text, data={"type": "report", **call, "is_error": False})
        for index, round, text in ((0, 0, "6 m deep"), (2, 1, "8 m deep"))
    )
    answers = [(_round(1), *_block(1, 1, "text", "6 m."), _sealed(1, "end_turn"))]
    answers += [(_round(2), *_block(3, 2, "text", "8 m."), _sealed(2, "end_turn"))]
    return (_START, *first, *answers[0], *second, *answers[1], _END)


def _taken_back() -> Sequence[Step]:
    """Returns a turn whose round failed inside its second block, and was written again from there."""
    begun = (*_block(0, 1, "thinking", "Hm."), *_block(1, 1, "text", "High ", "tid"))[:-1]
    reset: Step = ("reset", {"attempt": 2, "index": 1})
    again = (*_block(1, 1, "text", "Low ", "tide."), _sealed(1, "end_turn"), _END)
    return (_START, _round(1), *begun, reset, _round(1), *again)


def _of_a_later_version() -> Sequence[Step]:
    """Returns a turn with notices, and with unknown events, members and types of blocks."""
    unknown: Sequence[Step] = (("x_aurora", {"index": 0, "text": "no"}), ("x_zenith", {"blocks": [1]}))
    notices: Sequence[Step] = (("status", {"stage": "streaming"}), ("tool_progress", {"name": "x", "message": "…"}))
    steps: list[Step] = [*unknown]
    for number, (name, data) in enumerate((*TURN[:-1], *_block(5, 2, "x_hologram", "seen", x_depth=3), _END)):
        # The order of the events varies, so that a client cannot pass by chance.
        around = (unknown, notices, unknown[::-1], notices[::-1])[number % 4]
        steps += [*around, (name, {**data, "x_member": {"index": 99}})]
    return steps


# --- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """The first position in the bytes of a stream between the bytes `before` and the bytes `behind`."""

    before: bytes
    behind: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """Sends the events after the client's cursor: up to `cut`, or all events if `cut` is None. `then` decides what
    follows these events. The body ends (`end`), or the connection closes without the end of the body (`cut`) or with a
    TCP reset (`reset`), or the connection stays open without another byte (`silence`). With `beat`, comments are sent
    for a while, and then the rest. `bytewise` sends each byte in a separate chunk.
    """

    cut: Cut | None = None
    then: Literal["end", "cut", "reset", "silence", "beat"] = "end"
    bytewise: bool = False
    fields_reversed: bool = False
    line_end: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """A response that is no stream: a problem document, or the HTML page of a proxy. `retry_after` is in seconds."""

    status: int
    retry_after: int | None = None
    html: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The request arrives, and the connection closes without a response."""


Answer = Stream | PlainAnswer | Lost
WHOLE = Stream()


@dataclass(frozen=True, slots=True)
class Scenario:
    """`rule` is the number of the promise in docs/protocol.md. `answers` are the answers to the client's requests for
    the stream, in order. If the client sends the message itself, `posts` are the answers to its first POSTs; each later
    POST is answered with 201. `stops` means that the client must give up before the end of the turn. `pauses` is the
    rule for the pauses between requests. The turn as JSON has the first `in_json` events, or all if `in_json` is None.
    """

    promise: str
    rule: str
    answers: Sequence[Answer] = (WHOLE,)
    steps: Sequence[Step] = TURN
    posts: Sequence[Answer] | None = None
    stops: bool = False
    pauses: Literal["any", "growing", "named"] = "any"
    in_json: int | None = None
    heartbeat: float = 15
    retry: int = 50


def _cut(promise: str, before: bytes, behind: bytes, then: Literal["end", "cut", "reset"] = "cut") -> Scenario:
    return Scenario(promise, "C1", (Stream(Cut(before, behind), then), WHOLE))


_MIDDLE = Cut(b"\n\n", b"id: 1-9-0")
_CUTS = [Stream(Cut(b"\n\n", b"id: 1-%d-0" % place), "cut") for place in (4, 6, 9, 11)]
_NOTHING_NEW = Stream(Cut(b"\n\n", b"id: "), "end")
_BUSY = PlainAnswer(503)
_TOO_MANY = PlainAnswer(429)
_GATEWAY = PlainAnswer(502, html="<html><h1>502 Bad Gateway</h1></html>")
_EXPIRED: Step = ("access_ended", {"status": 401, "detail": "The token has expired."})

UNREACHABLE: Sequence[Scenario] = (
    Scenario("503 and 502 again and again", "C6", (_BUSY, _GATEWAY, _BUSY, _BUSY, WHOLE), pauses="growing"),
    Scenario("429 again and again", "C6", (*[_TOO_MANY] * 4, WHOLE), pauses="growing"),
    Scenario("no response again and again", "C6", (*[Lost()] * 4, WHOLE), pauses="growing"),
)
"""They fail before a stream has begun, so that a client has no reason to come back sooner after one than another."""

SCENARIOS: Sequence[Scenario] = (
    Scenario("a turn is assembled", "C1"),
    Scenario("single bytes", "C1", (Stream(bytewise=True),)),
    Scenario("lines that end in CR LF, cut between the two", "C1", (Stream(bytewise=True, line_end=b"\r\n"),)),
    Scenario("fields in another order", "C1", (Stream(fields_reversed=True),)),
    _cut("cut inside a character", b"\xf0\x9f", b"\x8c\x8a"),
    _cut("cut inside the name of a field", b"\nda", b'ta: {"index":2,"offset":0'),
    _cut("cut inside an id", b"\nid: 1-1", b"0-0\n"),
    _cut("cut between an id and its event", b"id: 1-10-0\n", b"event: "),
    _cut("cut inside data", b'"tool_', b'use_id"'),
    _cut("cut between data and the empty line", '"Büsum"}}\n'.encode(), b"\n"),
    _cut("cut inside a comment", b": pi", b"ng"),
    _cut("cut between two events", b"\n\n", b"id: 1-10-0"),
    _cut("cut inside the last event", b"event: turn_comp", b"lete"),
    _cut("a connection that is reset", b"event: round_", b"stop", "reset"),
    _cut("a stream that ends before its turn", b"\n\n", b"id: 1-11-0", "end"),
    Scenario("cut again and again", "C1", (*_CUTS, WHOLE)),
    Scenario("unknown events, members and types", "C2", steps=_of_a_later_version()),
    Scenario("reports before the first round and behind it", "C2", steps=_reported()),
    Scenario("a reset, in the midst of a block", "C3", steps=_taken_back()),
    Scenario("a reset after a reconnect", "C3", (Stream(Cut(b"\n\n", b"id: 2-"), "cut"), WHOLE), _taken_back()),
    Scenario("deltas of 131,072 characters", "C1", steps=_texts("🌊" * 131_072, "é" * 131_072)),
    Scenario("silence", "C5", (Stream(_MIDDLE, "silence"), WHOLE), heartbeat=0.5),
    Scenario("comments alone", "C5", (Stream(_MIDDLE, "beat"),), heartbeat=0.5),
    *UNREACHABLE,
    Scenario("streams that end at once", "C6", (*[_NOTHING_NEW] * 4, WHOLE), pauses="growing", retry=500),
    Scenario(
        "503 in mid-life with Retry-After", "C7", (Stream(_MIDDLE, "cut"), PlainAnswer(503, 2), WHOLE), pauses="named"
    ),
    Scenario("429 with Retry-After", "C7", (PlainAnswer(429, 2), WHOLE), pauses="named"),
    Scenario("401 in mid-life", "C8", (Stream(_MIDDLE, "cut"), PlainAnswer(401)), stops=True),
    Scenario(
        "access_ended, then 401",
        "C8",
        (Stream(Cut(b"\n\n", b"id: 1-4-0"), "end"), PlainAnswer(401)),
        (*TURN[:4], _EXPIRED, *TURN[4:]),
        stops=True,
    ),
    Scenario("403", "C8", (PlainAnswer(403),), stops=True),
    Scenario("404 in mid-life", "C8", (Stream(_MIDDLE, "cut"), PlainAnswer(404)), stops=True),
    Scenario("a POST without a response", "C9", posts=(Lost(),)),
    Scenario("a POST that meets a gateway's 502", "C9", posts=(_GATEWAY, _GATEWAY)),
    Scenario("a POST that meets 503 with Retry-After", "C9", posts=(PlainAnswer(503, 2),), pauses="named"),
    Scenario("a POST that is refused", "C9", (), posts=(PlainAnswer(422),), stops=True),
    Scenario("204 before the end", "C10", (Stream(_MIDDLE, "cut"), PlainAnswer(204))),
    Scenario("a cursor that is refused", "C10", (Stream(_MIDDLE, "cut"), PlainAnswer(400), WHOLE), in_json=15),
)
