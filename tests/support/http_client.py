"""A client that trusts nothing: it checks every answer, and every event of a stream."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.support.openapi_document import STREAM, Document

Json = dict[str, Any]

_TIMEOUT = 150  # seconds; on a loaded machine a server waits long for the CPU
_MORE_TRIES = 5
# Loading the system's certificates costs more than a test.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Event:
    """One server-sent event. `id` is None for a notice."""

    id: str | None
    name: str
    data: Any


class Parser:
    """Parses bytes into events, however the bytes are split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        *frames, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        fields = [dict(line.split(": ", 1) for line in frame.decode().splitlines()) for frame in frames]
        return [Event(f.get("id"), f["event"], json.loads(f["data"])) for f in fields if "data" in f]


class _CheckedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, document: Document, name: str) -> None:
        self._stream = stream
        self._document = document
        self._name = name

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parser = Parser()
        async for chunk in self._stream:
            for event in parser.feed(chunk):
                self._document.check_event(event.name, event.data, self._name)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Client(httpx2.AsyncClient):
    """A client of the API for one owner. Without a token, the client is the local owner."""

    def __init__(
        self, url: str, document: Document | None = None, token: str | None = None, owner: str = "local"
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        hooks = {"response": [self._check]} if document else {}
        super().__init__(
            base_url=url, headers=headers, event_hooks=hooks, timeout=_TIMEOUT, trust_env=False, verify=_NO_CERTIFICATES
        )
        self._document = document
        self.owner = owner

    async def _check(self, response: httpx2.Response) -> None:
        assert self._document is not None
        if response.headers.get("content-type", "").startswith(STREAM):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            name = self._document.stream_of(response.request)
            if name not in {"UiMessageStream", "AgUiRun", "OpenAI"}:  # clients of these dialects check the streams
                response.stream = _CheckedStream(response.stream, self._document, name)
        else:
            await response.aread()
        self._document.check(response.request, response)

    async def json(self, method: str, path: str, expect: int = 200, **request: Any) -> Any:
        """Returns the JSON of an answer, which must have the status `expect`. If a busy server refuses the request, the
        request is sent again after the wait that the answer gives, as other clients do.
        """
        response = await self.request(method, path, **request)
        for _ in range(_MORE_TRIES):
            if response.status_code == expect or not _is_overloaded(response):
                break
            await asyncio.sleep(int(response.headers["retry-after"]))
            response = await self.request(method, path, **request)
        assert response.status_code == expect, response.text
        return response.json()

    async def chat(self, **body: Any) -> str:
        """Creates a chat, and returns its address."""
        chat = await self.json("POST", "/api/chats", 201, json=body)
        return f"/api/chats/{chat['id']}"

    async def say(self, chat: str, words: str = "Hi", **body: Any) -> "Said":
        """Posts a message. Returns the user turn, and the assistant turn, which may still run."""
        answer = await self.json("POST", f"{chat}/turns", 201, json={**said(words), **body})
        return Said(answer["user_turn"], answer["assistant_turn"], answer["stream_url"])

    async def ask(self, chat: str, words: str = "Hi", **body: Any) -> "Said":
        """Posts a message, and returns the exchange after the end of its answer."""
        new = await self.say(chat, words, **body)
        await self.events(new.stream_url)
        return Said(new.user, await self.json("GET", turn_url(new.assistant)), new.stream_url)

    async def events(self, path: str, cursor: str | None = None) -> list[Event]:
        """Reads all events of a stream, to its end."""
        async with self.follow(path, cursor) as events:
            return [event async for event in events]

    @asynccontextmanager
    async def follow(self, path: str, cursor: str | None = None) -> AsyncIterator[AsyncIterator[Event]]:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        async with self.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield _events_of(response)


@dataclass(frozen=True)
class Said:
    user: Json
    assistant: Json
    stream_url: str

    @property
    def url(self) -> str:
        return turn_url(self.assistant)

    @property
    def user_url(self) -> str:
        return turn_url(self.user)


def _is_overloaded(response: httpx2.Response) -> bool:
    return response.status_code == 503 and '"overloaded"' in response.text


async def _events_of(response: httpx2.Response) -> AsyncIterator[Event]:
    parser = Parser()
    async for chunk in response.aiter_bytes():
        for event in parser.feed(chunk):
            yield event


def assembled(known: Sequence[str], events: Sequence[Event]) -> list[str]:
    """Returns the texts of all blocks, assembled from the known blocks and the later events."""
    texts = list(known)
    for event in events:
        if event.name == "block_start":
            assert event.data["index"] == len(texts)
            texts.append("")
        if event.name == "block_delta":
            assert event.data["offset"] == len(texts[event.data["index"]])
            texts[event.data["index"]] += event.data["text"]
    return texts


def said(words: str) -> Json:
    return {"role": "user", "blocks": [{"type": "text", "text": words}]}


def turn_url(turn: Json) -> str:
    return f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"


def words_of(turn: Json) -> str:
    return "".join(block["text"] for block in turn["blocks"] if block["type"] == "text")
