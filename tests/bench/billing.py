"""A fake of the Messages API that bills the prompt cache like the real API, by a comparison of prefixes.

Tools, system prompt and messages form one sequence of blocks. A marked block stores the prefix up to it in the cache. A
later request reads the longest stored prefix that ends within the last `LOOKED_BACK` blocks before one of its marks.
Another `tool_choice` invalidates the cached messages. A token has four bytes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

LOOKED_BACK = 20  # blocks
BYTES = 4  # bytes per token

Json = dict[str, Any]


@dataclass
class Bills:
    known: set[str] = field(default_factory=set)

    def usage_of(self, request: Mapping[str, Any]) -> Json:
        blocks = list(_blocks(request))
        prefixes = ["", *_prefixes(blocks)]
        marks = [place for place, block in enumerate(blocks, 1) if "cache_control" in block]
        read = max((self._known_before(prefixes, mark) for mark in marks), default=0)
        written = len(prefixes[marks[-1]]) if marks else 0
        self.known |= {prefixes[mark] for mark in marks}
        return {
            "input_tokens": (len(prefixes[-1]) - max(read, written)) // BYTES,
            "cache_read_input_tokens": read // BYTES,
            "cache_creation_input_tokens": max(written - read, 0) // BYTES,
            "output_tokens": 1,
        }

    def _known_before(self, prefixes: list[str], mark: int) -> int:
        for place in range(mark, max(mark - LOOKED_BACK, 0), -1):
            if prefixes[place] in self.known:
                return len(prefixes[place])
        return 0


def _blocks(request: Mapping[str, Any]) -> Iterator[Json]:
    yield from request.get("tools", ())
    yield from request.get("system", ())
    for number, message in enumerate(request["messages"]):
        choice = {"tool_choice": request.get("tool_choice")} if number == 0 else {}
        for block in message["content"]:
            yield {"role": message["role"], **choice, **block}


def _prefixes(blocks: list[Json]) -> Iterator[str]:
    said = ""
    for block in blocks:
        said += json.dumps({name: value for name, value in block.items() if name != "cache_control"})
        yield said


@dataclass
class BillingProvider:
    """Answers `rounds` times with two calls of the request's first tool, and then with a text."""

    rounds: int
    url: str = ""
    bills: Bills = field(default_factory=Bills)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                body = b"".join(self._answer(json.loads(await reader.readexactly(length))))
                answer = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(answer.encode() + body)
                await writer.drain()
        writer.close()

    def _answer(self, request: Json) -> Iterator[bytes]:
        usage = self.bills.usage_of(request)
        yield _event("message_start", message={"id": "msg", "content": [], "usage": usage})
        done = sum(message["role"] == "assistant" for message in request["messages"])
        blocks = list(_round(done, request["tools"][0]["name"])) if done < self.rounds else [_text("That is all.")]
        for index, (block, delta) in enumerate(blocks):
            yield _event("content_block_start", index=index, content_block=block)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        reason = "tool_use" if done < self.rounds else "end_turn"
        yield _event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 50})
        yield _event("message_stop")


def _round(number: int, tool: str) -> Iterator[tuple[Json, Json]]:
    yield _text(f"I look at places {2 * number + 1} and {2 * number + 2}, and tell you when I have seen them.")
    for place in (1, 2):
        call = {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": tool, "input": {}}
        yield call, {"type": "input_json_delta", "partial_json": json.dumps({"place": 2 * number + place})}


def _text(words: str) -> tuple[Json, Json]:
    return {"type": "text", "text": ""}, {"type": "text_delta", "text": words}


def _event(type: str, **members: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **members})}\n\n".encode()


@asynccontextmanager
async def billing(rounds: int) -> AsyncIterator[BillingProvider]:
    provider = BillingProvider(rounds)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
