"""A stream ends when its credential is revoked, expires or is rotated away. In every dialect the stream sends a last
event.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from tests.support import calls
from tests.support.http_client import Client, said
from tests.support.http_server import Server, pausing, serving
from tests.support.issuer import AUDIENCE, issuing
from tests.support.openapi_document import Document
from turnstream.api.streams import watch
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import OF_A_PERSON, Identity
from turnstream.scripted import Pause
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS = {
    "turn": "GET /api/chats/{chat}/turns/{turn}/stream",
    "post": "POST /api/turns",
    "chat": "GET /api/chats/{chat}/stream",
    "feed": "GET /api/stream",
    "ai-sdk": "POST /api/ai-sdk/chat",
    "ai-sdk resumed": "GET /api/ai-sdk/chat/{id}/stream",
    "ai-sdk workflow": "POST /api/ai-sdk/workflow",
    "ag-ui": "POST /api/ag-ui",
    "ag-ui connected": "POST /api/ag-ui/connect",
    "openai": "POST /v1/responses",
    "openai completion": "POST /v1/chat/completions",
    "anthropic": "POST /v1/messages",
}
# These calls are left out: each has the stream of a call above, or uses the same response.
ALIKE = {
    "POST /api/chats/{chat}/turns",
    "POST /api/chats/{chat}/turns/{turn}/regenerate",
    "POST /api/chats/{chat}/turns/{turn}/fork",
    "GET /api/ai-sdk/workflow/{id}/stream",
    "GET /v1/responses/{response}",
    "GET /api/admin/stream",
}
_MARKS = {
    "ai-sdk": pytest.mark.extensions("ai_sdk"),
    "ag-ui": pytest.mark.extensions("ag_ui"),
    "openai": pytest.mark.extensions("openai_api"),
    "anthropic": pytest.mark.extensions("anthropic_api"),
}
DIALECTS = [pytest.param(name, marks=mark) if (mark := _MARKS.get(name.partition(" ")[0])) else name for name in CALLS]


ENDPOINTS = {each.call: each for each in (*calls.ENDPOINTS, *calls.OPENAI)}
# The media types of bodies that are sent whole. A call with another media type is a stream.
WHOLE = {"text/plain", "application/json", "application/x-tar", "*/*"}
# The lines that a client of a stream expects, by the media type of the stream. A heartbeat is such a line, too.
LINES = {"text/event-stream": re.compile("((data|event|id|retry)?:.*)?")}


async def test_each_call_that_streams_is_among_them() -> None:
    media_types = {call: each.gives for call, each in ENDPOINTS.items() if isinstance(each.gives, str)}
    streaming = {call for call, each in ENDPOINTS.items() if each.streams or media_types.get(call, "*/*") not in WHOLE}
    assert streaming <= {*CALLS.values(), *ALIKE}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0.05)


@dataclass
class Reading:
    """A stream that a task reads to its end, on its own connection."""

    response: httpx2.Response
    text: str = ""
    whole: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def to_end(self) -> None:
        try:
            async for chunk in self.response.aiter_text():
                self.text += chunk
                self.more.set()
                if "data:" in self.text:
                    self.begun.set()
            self.whole = True
        finally:
            self.begun.set()

    @property
    def last(self) -> str:
        return self.text.rstrip("\n").rpartition("\n\n")[2]


@asynccontextmanager
async def reading(
    server: Server, dialect: str, token: str, owner: str
) -> AsyncIterator[tuple[Reading, asyncio.Task[None]]]:
    """Reads the stream of a turn that waits in the middle of its text."""
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."))
    credentials = {"Authorization": f"Bearer {token}"}
    keeper = {"Authorization": f"Bearer {await server.token(owner)}"}
    async with httpx2.AsyncClient(base_url=server.url, timeout=150, trust_env=False) as client:
        body: dict[str, Any] = {**said("Hi"), "model": model}
        messages = [{"role": "user", "content": "Hi"}]
        call: tuple[str, str, Any] = ("POST", "/api/turns", body)
        if dialect in {"ai-sdk", "ai-sdk workflow"}:
            parts = [{"type": "text", "text": "Hi"}]
            message = {"id": "m", "role": "user", "parts": parts}
            sent = {"id": str(time.time()), "messages": [message], "turnstream": {"model": model}}
            call = ("POST", CALLS[dialect].removeprefix("POST "), sent)
        elif dialect == "ag-ui":
            message = {"id": "m", "role": "user", "content": "Hi"}
            options = {"forwardedProps": {"turnstream": {"model": model}}}
            sent = {"threadId": str(time.time()), "runId": "r", "messages": [message], **options}
            call = ("POST", "/api/ag-ui", sent)
        elif dialect == "openai":
            call = ("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": True})
        elif dialect == "openai completion":
            call = ("POST", "/v1/chat/completions", {"model": model, "messages": messages, "stream": True})
        elif dialect == "anthropic":
            call = ("POST", "/v1/messages", {"model": model, "max_tokens": 9, "messages": messages, "stream": True})
        elif dialect != "post":
            turn = (await client.post("/api/turns", json=body, headers=keeper)).json()["assistant_turn"]
            await pause.reached.wait()
            chat = f"/api/chats/{turn['chat_id']}"
            paths = {
                "turn": f"{chat}/turns/{turn['id']}/stream",
                "chat": f"{chat}/stream",
                "feed": "/api/stream",
                "ai-sdk resumed": f"/api/ai-sdk/chat/{turn['chat_id']}/stream",
            }
            call = ("GET", paths.get(dialect, ""), None)
            if dialect == "ag-ui connected":
                call = ("POST", "/api/ag-ui/connect", {"threadId": turn["chat_id"], "runId": "r"})
        accept = {"Accept": "text/event-stream"}
        async with client.stream(call[0], call[1], json=call[2], headers=credentials | accept) as response:
            assert response.status_code == 200, await response.aread()
            found = Reading(response)
            task = asyncio.create_task(found.to_end())
            await found.begun.wait()
            yield found, task
            task.cancel()
        pause.go.set()


def has_its_last_word(dialect: str, found: Reading) -> None:
    assert found.whole, "the body is complete: the end is no failure of the network"
    if dialect.startswith("ai-sdk"):
        chunk = json.loads(found.last.removeprefix("data: "))
        assert chunk.pop("errorText")
        assert chunk == {"type": "error"}
    elif dialect == "anthropic":
        name, data = found.last.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "authentication_error"
    elif dialect.startswith("openai"):
        name, data = found.last.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "invalid_api_key"
    elif dialect.startswith("ag-ui"):
        event = json.loads(found.last.removeprefix("data: "))
        assert event.pop("message")
        assert event == {"type": "RUN_ERROR", "code": "access_ended"}
    else:
        name, data = found.last.split("\n")
        assert name == "event: access_ended"
        assert json.loads(data.removeprefix("data: "))["status"] == 401


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_token_that_is_revoked_ends_its_streams_with_a_last_word(server: Server, dialect: str) -> None:
    tokens = Tokens(server.services.storage.database)
    owner = f"owner of {dialect} {time.time()}"
    async with (
        reading(server, dialect, await tokens.create(owner, Identity(owner)), owner) as (revoked, end),
        reading(server, dialect, await server.token(owner), owner) as (kept, goes_on),
    ):
        assert await tokens.delete(owner)
        await end
        has_its_last_word(dialect, revoked)
        assert not goes_on.done(), "the streams of another token of the same owner go on"
        assert "access_ended" not in kept.text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_that_waits_has_lines_of_its_media_type(database_url: str, dialect: str) -> None:
    gives = ENDPOINTS[CALLS[dialect]].gives
    async with (
        serving(database_url, heartbeat=0.02) as server,
        reading(server, dialect, await server.token("ada"), "ada") as (found, _),
    ):
        found.more.clear()
        await found.more.wait()
        media_type = found.response.headers["content-type"].partition(";")[0]
        assert media_type == (gives if isinstance(gives, str) else "text/event-stream")
        assert [line for line in found.text.split("\n") if not LINES[media_type].fullmatch(line)] == []


async def long_enough_to_open(server: Server, dialect: str, token: str, owner: str) -> float:
    """Measures how many seconds suffice to open a stream on this machine under its present load."""
    before = time.monotonic()
    async with reading(server, dialect, token, owner):
        return 1 + 5 * (time.monotonic() - before)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_token_that_expires_ends_its_streams(server: Server, dialect: str) -> None:
    owner = f"guest of {dialect}"
    lifetime = await long_enough_to_open(server, dialect, await server.token(owner), owner)
    soon = datetime.now(UTC) + timedelta(seconds=lifetime)
    async with reading(server, dialect, await server.token(owner, expires_at=soon), owner) as (found, end):
        await end
        assert datetime.now(UTC) >= soon
        has_its_last_word(dialect, found)


async def test_the_pauses_of_the_watch_end_a_stream_within_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from turnstream.api.identity.authenticator import BELIEVED  # noqa: PLC0415, as it is without the patch

    assert watch.PAUSE + BELIEVED + watch._TIMEOUT <= 20


async def test_with_another_token_a_reader_continues_from_its_cursor(server: Server, document: Document) -> None:
    tokens, owner = Tokens(server.services.storage.database), f"who comes back {time.time()}"
    async with reading(server, "turn", await tokens.create(owner, Identity(owner)), owner) as (found, end):
        await tokens.delete(owner)
        await end
        path = found.response.url.path
        cursor = [line for line in found.text.split("\n") if line.startswith("id: ")][-1].removeprefix("id: ")
    async with Client(server.url, document, await server.token(owner)) as client:
        rest = await client.events(path, cursor)
        assert "".join(event.data["text"] for event in rest if event.name == "block_delta") == "two."


@pytest.mark.extensions("jwt")
async def test_keys_rotate_and_a_token_expires_in_mid_stream(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._PAUSE", 0)
    async with (
        issuing() as issuer,
        serving(database_url, jwt_issuer=issuer.url, jwt_audience=AUDIENCE, jwt_leeway=0) as server,
        reading(server, "turn", issuer.token("first"), "ada") as (found, end),
    ):
        issuer.add_key("second")
        lifetime = 1 + await long_enough_to_open(server, "chat", issuer.token("second"), "ada")  # JWTs drop fractions
        async with (
            reading(server, "chat", issuer.token("second", seconds=lifetime), "ada") as (short, short_end),
            Client(server.url, document, issuer.token("second")) as client,
        ):
            assert (await client.get("/api/chats")).status_code == 200
            await short_end
            has_its_last_word("chat", short)
        assert not end.done(), "its key is still there"
        issuer.published = ["second"]
        monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._AGE", 0)
        await end
        has_its_last_word("turn", found)
        assert "does not have: 'first'" in found.last


async def test_a_function_of_the_program_ends_streams_too(database_url: str) -> None:
    sessions = {"ada"}
    fails = asyncio.Event()

    async def by_name(request: Request) -> Identity | None:
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        if fails.is_set():
            raise LookupError("the host's database is away")
        if name.startswith("ts_"):
            return None
        if name not in sessions:
            raise Unauthorized("The session has ended.")
        return Identity(name)

    async with (
        serving(database_url, authenticate=by_name) as server,
        reading(server, "turn", "ada", "ada") as (found, end),
    ):
        fails.set()
        for _ in range(3):
            await watch._check(next(iter(server.services.streams.all())))
        assert not end.done(), "what cannot be checked now goes on"
        fails.clear()
        sessions.clear()
        await end
        has_its_last_word("turn", found)
        assert "The session has ended." in found.last


async def test_the_first_token_ends_the_streams_of_an_open_server(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.local.BELIEVED", 0.05)
    async with (
        serving(database_url) as server,
        httpx2.AsyncClient(base_url=server.url, trust_env=False) as client,
        client.stream("GET", "/api/stream") as response,
    ):
        found = Reading(response)
        task = asyncio.create_task(found.to_end())
        await client.post("/api/chats", json={})
        await found.begun.wait()
        await server.token("ada")
        await task
        has_its_last_word("feed", found)


async def test_a_stream_that_cannot_be_checked_ends_when_its_credential_does(database_url: str) -> None:
    spans = [timedelta(seconds=1)]  # the second check finds no span, and raises

    async def once(request: Request) -> Identity | None:
        if request.headers.get("authorization", "").startswith("Bearer ts_"):
            return None
        return Identity("ada", OF_A_PERSON, datetime.now(UTC) + spans.pop())

    async with (
        serving(database_url, authenticate=once) as server,
        reading(server, "turn", "ada", "ada") as (found, end),
    ):
        await end
        has_its_last_word("turn", found)
        assert "expired" in found.last
