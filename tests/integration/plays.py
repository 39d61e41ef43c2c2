"""Random streams of the Anthropic API, legal and broken, and a server that sends them in random pieces."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from tests.support.legal import anthropic as legal
from tests.support.legal import openai as openai_legal
from tests.support.legal import responses as responses_legal
from turnstream.kit.text import storable

Json = dict[str, Any]
# The event that begins a block, the deltas of the block, and the text that they add up to.
Written = tuple[Json, list[Json], str]
Ending = Literal["whole", "cut", "error", "unfinished", "refused", "permanent"]

LETTERS = 'ab \n"\\\x00\x01\u00e9\u4e2d\u2028\U0001f6a2\U00010348'
STOPS = ("end_turn", "stop_sequence", "pause_turn", "refusal", "max_tokens")
ENDINGS: Mapping[Ending, int] = {"whole": 60, "cut": 15, "error": 10, "unfinished": 5, "refused": 9, "permanent": 1}
REFUSALS = ((529, "overloaded_error"), (500, "api_error"), (429, "rate_limit_error"))


@dataclass(frozen=True)
class Play:
    """One answer. `said` has the types and texts of the blocks that the turn must contain if the answer is complete."""

    status: int
    body: bytes
    sizes: Sequence[int]
    ending: Ending
    said: list[tuple[str, str]]
    stop_reason: str


class Author:
    """Writes plays. No two calls of one author have the same id."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._calls = 0

    def script(self) -> list[Play]:
        return [self.play() for _ in range(self._random.randrange(6))] + [self.play(ending="whole", calm=True)]

    def play(self, ending: Ending | None = None, *, calm: bool = False) -> Play:
        random = self._random
        ending = ending or random.choices(list(ENDINGS), list(ENDINGS.values()))[0]
        if ending in ("refused", "permanent"):
            return self._refusal(ending)
        blocks = [self._text()] if calm else [self._block() for _ in range(random.randrange(5))]
        events, said, stop_reason = self._message(blocks, "end_turn" if calm else None)
        body = self._bytes(events, ending)
        return Play(200, body, self._sizes(), ending, said, stop_reason)

    def _refusal(self, ending: Ending) -> Play:
        status, kind = self._random.choice(REFUSALS) if ending == "refused" else (400, "invalid_request_error")
        body = {"type": "error", "error": {"type": kind, "message": "No."}}
        return Play(status, json.dumps(body).encode(), [1000], ending, [], "")

    # --- blocks: their events, and what a turn should hold of them ---------------------------------------------------

    def _block(self) -> list[Written]:
        kinds = (
            self._text,
            self._text,
            self._thinking,
            self._redacted,
            self._call,
            self._call,
            self._server,
            self._new,
        )
        return self._random.choice(kinds)()

    def _text(self) -> list[Written]:
        text = self._words(40)
        deltas: list[Json] = [{"type": "text_delta", "text": piece} for piece in self._pieces(text)]
        if self._random.random() < 0.3:
            deltas.insert(0, {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "\u00e9"}})
        return [({"type": "text", "text": ""}, deltas, text)]

    def _thinking(self) -> list[Written]:
        text = self._words(20)
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in self._pieces(text)]
        deltas.append({"type": "signature_delta", "signature": self._words(5) + "sig"})
        return [({"type": "thinking", "thinking": "", "signature": ""}, deltas, text)]

    def _redacted(self) -> list[Written]:
        return [({"type": "redacted_thinking", "data": "secret"}, [], "")]

    def _call(self) -> list[Written]:
        self._calls += 1
        name = self._random.choice(["look", "look", "explode", "sing"])
        given = {"what": self._words(8)} if self._random.random() < 0.5 else {}
        text = json.dumps(given, ensure_ascii=self._random.random() < 0.5).replace("\\u0000", "?")
        shell = {"type": "tool_use", "id": f"toolu_{self._calls}", "name": name, "input": {}}
        return [(shell, [{"type": "input_json_delta", "partial_json": piece} for piece in self._pieces(text)], text)]

    def _server(self) -> list[Written]:
        self._calls += 1
        id, text = f"srvtoolu_{self._calls}", '{"query":"tides"}'
        shell = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {}}
        found = {"type": "web_search_tool_result", "tool_use_id": id, "content": [{"type": "web_search_result"}]}
        return [
            (shell, [{"type": "input_json_delta", "partial_json": piece} for piece in self._pieces(text)], text),
            (found, [], ""),
        ]

    def _new(self) -> list[Written]:
        deltas = [{"type": "hologram_delta", "frames": n} for n in range(self._random.randrange(3))]
        return [({"type": "hologram", "data": {"deep": [1, {"\u00e9": None}]}}, deltas, "")]

    def _words(self, most: int) -> str:
        return "".join(self._random.choices(LETTERS, k=self._random.randrange(most)))

    def _pieces(self, text: str) -> list[str]:
        cuts = sorted(self._random.randrange(len(text) + 1) for _ in range(self._random.randrange(8)))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [piece for piece in pieces if piece or self._random.random() < 0.2]

    # --- messages ----------------------------------------------------------------------------------------------------

    def _message(
        self, groups: Sequence[list[Written]], stop_reason: str | None
    ) -> tuple[list[Json], list[tuple[str, str]], str]:
        blocks = [block for group in groups for block in group]
        calls = any(block["type"] == "tool_use" for block, _, _ in blocks)
        if stop_reason is None:
            usual = "tool_use" if calls and self._random.random() < 0.8 else None
            stop_reason = usual or self._random.choice(STOPS)
        usage = {"input_tokens": self._random.randrange(100), "output_tokens": 1}
        events: list[Json] = [{"type": "message_start", "message": {"id": "msg", "content": [], "usage": usage}}]
        for index, (block, deltas, _) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        said = [(block["type"], storable(text)) for block, _, text in blocks]
        if stop_reason == "max_tokens" and blocks and not calls:
            events.pop()
        usage = {"output_tokens": self._random.randrange(50)}
        delta = {"stop_reason": stop_reason, "stop_sequence": None}
        return (
            [*events, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}],
            said,
            stop_reason,
        )

    def _bytes(self, events: Sequence[Json], ending: Ending) -> bytes:
        newline = self._random.choice(["\n", "\n", "\r\n", "\r"])
        plain = self._random.random() < 0.5
        if ending == "unfinished":
            events = events[: self._random.randrange(len(events) - 1)]
        if ending == "error":
            failure = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            events = [*events[: self._random.randrange(1, len(events) - 1)], failure]
        frames = [self._frame(event, newline, plain).encode() for event in events]
        if ending != "cut":
            return b"".join(frames)
        body = b"".join(frames[:-2])  # a client that misses only the last two events has the whole message
        return body[: self._random.randrange(len(body))]

    def _frame(self, event: Json, newline: str, plain: bool) -> str:
        data = json.dumps(event, ensure_ascii=plain)
        frame = f"event: {event['type']}{newline}data: {data}{newline}{newline}"
        extras = (
            'event: ping{0}data: {{"type": "ping"}}{0}{0}',
            ": a comment{0}{0}",
            'data: {{"type": "brand_new"}}{0}{0}',
        )
        return frame + (self._random.choice(extras).format(newline) if self._random.random() < 0.1 else "")

    def _sizes(self) -> list[int]:
        return self._random.choice([[1], [65_536], [self._random.randrange(1, 400) for _ in range(20)], [3, 500, 40]])


# --- the stage -------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """Plays the script of the requested model. `played` has the plays by model; `asked` has the requests. The path of a
    request determines the API.
    """

    url: str = ""
    scripts: dict[str, Iterator[Play]] = field(default_factory=dict)
    played: dict[str, list[Play]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    asked: list[Json] = field(default_factory=list)

    def rehearse(self, model: str, script: Sequence[Play]) -> None:
        self.scripts[model], self.played[model] = iter(script), []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        path, request = await _request(reader)
        self.asked.append(request)
        before = self.played[request["model"]]
        if path.endswith("/chat/completions"):
            self.problems += openai_legal.request_problems(request)
        elif path.endswith("/responses"):
            self.problems += responses_legal.request_problems(request)
        else:
            paused = any(play.stop_reason in ("pause_turn", "tool_use") for play in before)
            self.problems += legal.request_problems(request, paused=paused)
        play = next(self.scripts[request["model"]])
        before.append(play)
        kind = "text/event-stream" if play.status == 200 else "application/json"
        head = f"HTTP/1.1 {play.status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n"
        writer.write(f"{head}request-id: req_1\r\nretry-after: 0\r\n\r\n".encode())
        for piece in _cut(play.body, play.sizes):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        if play.ending == "cut":
            writer.transport.abort()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def playing() -> AsyncIterator[Stage]:
    stage = Stage()
    server = await asyncio.start_server(stage.serve, "127.0.0.1", 0)
    stage.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield stage
    finally:
        server.close()


def _cut(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    place = number = 0
    while place < len(body):
        size = sizes[number % len(sizes)]
        yield body[place : place + size]
        place, number = place + size, number + 1


async def _request(reader: asyncio.StreamReader) -> tuple[str, Json]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    request: Json = json.loads(await reader.readexactly(length))
    return head.split()[1], request
