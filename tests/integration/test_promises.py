"""The promises of docs/protocol.md, over a real socket. Each test lists the numbers of its promises."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from tests.support.http_client import Client, Event, Json, Parser, Said, said
from tests.support.http_server import Server, pausing, serving
from tests.support.locks import Locker
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.events import BlockStop, Mark, RoundStop, TurnEnd
from turnstream.llm.provider import Unknown
from turnstream.scripted import Pause, Reply, Step, message_of, text, thinking, tool_use

ENDS = {"turn_complete", "turn_cancelled", "turn_error"}
PROTOCOL = Path(__file__).parents[2] / "docs/protocol.md"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, max_reply_chars=6_000_000) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def asked(client: Client, server: Server, *replies: Reply, **body: Any) -> Said:
    """Starts a turn with `replies` as its model's replies. The turn may still run."""
    return await client.say(await client.chat(), model=server.scripts.model(*replies), **body)


def conversation() -> list[Reply]:
    """A turn with every kind of content: thinking, prose, two parallel calls, their results, an answer."""
    calls = (tool_use("doc_tree", {}, "call_1"), tool_use("doc_view", {"path": "nowhere"}, "call_2"))
    return [message_of(thinking("Let me ", "look."), text("I look."), *calls), message_of(text("Nothing ", "there."))]


Apply = Callable[[Json, str, Mapping[str, Any]], None]


@pytest.fixture(scope="module")
def apply() -> Apply:
    """Returns the function `apply` of the client that the documentation prints."""
    code = re.findall(r"^```python\n(.*?)^```$", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(code), names)
    return cast("Apply", names["apply"])


def assembled(apply: Apply, events: list[Event], turn: Json | None = None) -> Json:
    turn = {"blocks": [], "end": None} if turn is None else turn
    for event in events:
        apply(turn, event.name, event.data)
    return turn


def place(event: Event) -> tuple[int, ...]:
    assert event.id is not None
    return tuple(map(int, event.id.split("-")))


def kept(events: list[Event]) -> list[Event]:
    """Returns the events without notices and other transient events."""
    return [event for event in events if event.id is not None]


# --- S4 to S8 --------------------------------------------------------------------------------------------------------


async def test_after_the_last_event_there_is_nothing_left_for_ever(client: Client) -> None:
    new = await client.ask(await client.chat())
    *_, last = await client.events(new.stream_url)
    cursor = new.assistant["cursor"]
    assert last.id == cursor
    by_header = await client.get(new.stream_url, headers={"Last-Event-ID": cursor})
    by_query = await client.get(new.stream_url, params={"cursor": cursor})
    assert (by_header.status_code, by_query.status_code, by_header.content) == (204, 204, b"")


async def test_the_first_bytes_come_while_the_model_is_silent(client: Client, server: Server) -> None:
    silence = Pause()
    new = await asked(client, server, [silence])
    await silence.reached.wait()
    async with client.stream("GET", new.stream_url) as response:
        first = await anext(response.aiter_bytes())
    assert first.startswith(b"retry: 1000\n\n")


async def test_a_silent_stream_is_kept_alive_by_comments(database_url: str) -> None:
    async with serving(database_url, heartbeat=0.01) as server, Client(server.url) as client:
        new = await asked(client, server, [Pause()])
        async with client.stream("GET", new.stream_url) as response:
            assert response.headers["turnstream-heartbeat"] == "0.01"
            comments = (line async for line in response.aiter_lines() if line.startswith(":"))
            assert [await anext(comments), await anext(comments)]


async def test_a_reader_that_stalls_holds_nobody_up_and_loses_nothing(client: Client, server: Server) -> None:
    pieces = [str(number % 10) * 50_000 for number in range(100)]
    new = await asked(client, server, message_of(text(*pieces)))
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=4096)
    writer.write(f"GET {new.stream_url} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 OK" in head
    others = await client.events(new.stream_url)
    assert "".join(event.data["text"] for event in others if event.name == "block_delta") == "".join(pieces)
    late = re.findall(rb'"text":"(\d+)"', _unchunked(await reader.read()))
    assert b"".join(late) == "".join(pieces).encode()
    writer.close()


def _unchunked(body: bytes) -> bytes:
    whole, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        whole, rest = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


async def test_a_page_read_as_json_continues_as_a_stream_without_gaps(
    client: Client, server: Server, apply: Apply
) -> None:
    pause = Pause()
    new = await asked(client, server, pausing(pause, "Half ", "and ", "half."))
    await pause.reached.wait()
    page = await client.json("GET", new.url)
    assert page["blocks"][-1] | {"open": True} == page["blocks"][-1]
    assert page["blocks"][-1]["text"] == "Half "
    pause.go.set()
    rest = await client.events(new.stream_url, page["cursor"])
    assert "".join(event.data["text"] for event in rest if event.name == "block_delta") == "and half."
    assembled(apply, rest, page)
    whole = await client.json("GET", new.url)
    assert [block["text"] for block in page["blocks"]] == [block["text"] for block in whole["blocks"]]
    assert whole["cursor"] == rest[-1].id


async def test_headers_keep_proxies_from_holding_events_back(client: Client) -> None:
    new = await client.ask(await client.chat())
    response = await client.get(new.stream_url, headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers


# --- S9 to S12 -------------------------------------------------------------------------------------------------------


async def test_content_sent_as_complete_is_stored(client: Client, server: Server) -> None:
    """While Postgres delays the writer, no reader receives a part of the turn as complete."""
    whole = list(message_of(text("Hello.")))
    before: dict[type[Mark], Pause] = {BlockStop: Pause(), RoundStop: Pause()}
    reply: Reply = [*whole[:-2], before[BlockStop], whole[-2], before[RoundStop], whole[-1]]
    connection, watcher = [await asyncpg.connect(server.database_url) for _ in range(2)]
    locker = Locker(connection, watcher)
    new = await asked(client, server, reply)
    identity = UUID(new.assistant["id"])
    for kind, pause in before.items():
        await pause.reached.wait()
        view = server.services.live.directory.running(identity)
        assert view is not None
        async with locker.holding("SELECT 1 FROM turns WHERE id = $1 FOR UPDATE", identity):
            pause.go.set()
            await locker.waiting()
            assert not any(isinstance(mark, (kind, TurnEnd)) for mark in view.marks)
    await connection.close()
    await watcher.close()


async def test_a_stream_ends_with_the_one_event_that_says_how(client: Client, server: Server) -> None:
    pause = Pause()
    cancelled = await asked(client, server, [pause])
    await pause.reached.wait()
    await client.json("POST", f"{cancelled.url}/cancel", 202)
    refused = await asked(client, server, [PermanentError("billing_error", "no money", request_id="req_1")])
    complete = await asked(client, server, *conversation())
    for new, end in ((complete, "turn_complete"), (cancelled, "turn_cancelled"), (refused, "turn_error")):
        events = await client.events(new.stream_url)
        assert [event.name for event in events if event.name in ENDS] == [events[-1].name] == [end]


async def test_events_come_in_the_order_that_a_simple_client_needs(client: Client, server: Server) -> None:
    new = await asked(client, server, *conversation())
    events = await client.events(new.stream_url)
    shape = " ".join(_shape(event) for event in kept(events) if event.name != "block_delta")
    reply, result = r"(start:(?!tool_result)\w+ stop )*", r"(start:tool_result stop )*"
    assert re.fullmatch(f"turn_start (round_start {reply}round_stop {result})*turn_complete", shape)
    starts = [event.data["index"] for event in events if event.name == "block_start"]
    assert starts == list(range(len(starts)))
    assert [event.data["name"] for event in events if event.data.get("type") == "tool_use"] == ["doc_tree", "doc_view"]


def _shape(event: Event) -> str:
    if event.name == "block_start":
        return f"start:{event.data['type']}"
    return "stop" if event.name == "block_stop" else event.name


async def test_voided_content_is_announced_before_its_replacement(client: Client, server: Server, apply: Apply) -> None:
    watched = Pause()
    beginning = list(message_of(text("One ", "two.")))[:4]
    cut = TransientError("overloaded_error", "cut", retry_after=0)
    new = await asked(
        client, server, [*beginning, watched, cut], message_of(text("Three.")), limits={"recovery": "retry"}
    )
    await watched.reached.wait()
    page = await client.json("GET", new.url)
    async with client.follow(new.stream_url) as live:
        seen = [await anext(live) for _ in range(4)]
        watched.go.set()
        seen += [event async for event in live]
    names = [event.name for event in seen if event.id is not None and event.name != "block_delta"]
    assert names[:5] == ["turn_start", "round_start", "block_start", "reset", "round_start"]
    returned = await client.events(new.stream_url, page["cursor"])
    assert (returned[0].name, returned[0].data["index"]) == ("reset", 0)
    for turn in (assembled(apply, seen), assembled(apply, returned, page)):
        assert [block["text"] for block in turn["blocks"]] == ["Three."]
    ids = [place(event) for event in seen if event.id is not None]
    assert ids == sorted(set(ids))


# --- S13 to S18 ------------------------------------------------------------------------------------------------------


async def test_offsets_count_code_points(client: Client, server: Server) -> None:
    words = ["🌊🌊 ", "é", "a\u0301 ", "漢字"]
    pauses = [Pause() for _ in words]
    whole = list(message_of(text(*words)))
    said_slowly: list[Step] = []
    for piece, pause in zip(whole[2:-2], pauses, strict=True):
        said_slowly += [piece, pause]
    new = await asked(client, server, [*whole[:2], *said_slowly, *whole[-2:]])
    deltas: list[Event] = []
    async with client.follow(new.stream_url) as events:
        async for event in events:
            if event.name == "block_delta":
                deltas.append(event)
                pauses[len(deltas) - 1].go.set()
    assert [delta.data["text"] for delta in deltas] == words
    assert [delta.data["offset"] for delta in deltas] == [0, 3, 4, 7]
    assert [place(delta)[2] for delta in deltas] == [3, 4, 7, 9]


async def waited_for(server: Server, new: Said) -> None:
    """Waits until a reader waits for further events of the running turn."""
    view = server.services.live.directory.running(UUID(new.assistant["id"]))
    assert view is not None
    while not view.wakeup.has_waiters:  # noqa: ASYNC110, it rings for the reader
        await asyncio.sleep(0)


async def test_notices_have_no_id_and_pass_by(client: Client, server: Server, apply: Apply) -> None:
    listening = Pause()
    failing: Reply = [listening, TransientError("rate_limit_error", "later", retry_after=0)]
    news = Unknown('{"type":"brand_new"}')
    whole = list(message_of(text("Hello.")))
    new = await asked(client, server, failing, [whole[0], (news,), *whole[1:]])
    async with client.follow(new.stream_url) as live:
        seen = [await anext(live)]
        await listening.reached.wait()
        await waited_for(server, new)  # only connected readers get notices
        listening.go.set()
        seen += [event async for event in live]
    notices = [event for event in seen if event.id is None]
    said_of_it = [notice for notice in notices if "stage" not in notice.data]
    assert [notice.name for notice in said_of_it] == ["retry", "status"]
    assert said_of_it[0].data["error"] == "rate_limit_error"
    assert "streaming" in [notice.data.get("stage") for notice in notices]
    again = await client.events(new.stream_url)
    assert all(event.id is not None for event in again)
    assert assembled(apply, again) == assembled(apply, seen)


async def test_a_turn_continues_without_readers(client: Client, server: Server) -> None:
    pause = Pause()
    new = await asked(client, server, pausing(pause, "Nobody ", "listens."))
    async with client.follow(new.stream_url) as events:
        await anext(events)
        await pause.reached.wait()
    view = server.services.live.directory.running(UUID(new.assistant["id"]))
    assert view is not None
    pause.go.set()
    while not view.ended:
        await view.wakeup.wait()
    turn = await client.json("GET", new.url)
    assert (turn["status"], turn["blocks"][0]["text"]) == ("complete", "Nobody listens.")


async def test_a_post_may_answer_with_the_stream(client: Client, server: Server, apply: Apply) -> None:
    model = server.scripts.model(*conversation())
    headers = {"Accept": "text/event-stream", "Idempotency-Key": "one"}
    first, second = [await _posted(client, {**said("Hi"), "model": model}, headers) for _ in range(2)]
    start = first[0].data
    assert (second[0].data["chat"], second[0].data["turn"]) == (start["chat"], start["turn"])
    got = await client.events(f"/api/chats/{start['chat']}/turns/{start['turn']}/stream")
    assert assembled(apply, first) == assembled(apply, second) == assembled(apply, got)
    assert first[0].name == "turn_start"


async def _posted(client: Client, body: Json, headers: dict[str, str]) -> list[Event]:
    response = await client.post("/api/turns", json=body, headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    return Parser().feed(response.content)


async def test_a_stream_that_cannot_be_is_refused_with_a_reason(server: Server) -> None:
    tokens = [await server.token(owner) for owner in ("ada", "eve")]
    async with Client(server.url, token=tokens[0]) as ada, Client(server.url, token=tokens[1]) as eve:
        new = await ada.ask(await ada.chat())
        refusals = {
            400: [await _refusal(ada, new.stream_url, cursor) for cursor in ("yesterday", "1-2", "-1-0-0", "0-1-00")],
            409: [await _refusal(ada, f"{new.user_url}/stream", None)],
            404: [await _refusal(eve, new.stream_url, cursor) for cursor in (None, "1-2-0")],
        }
    for status, answers in refusals.items():
        for answer in answers:
            assert (answer["status"], bool(answer["detail"])) == (status, True)


async def _refusal(client: Client, path: str, cursor: str | None) -> Json:
    response = await client.get(path, headers={"Last-Event-ID": cursor} if cursor else {})
    assert response.headers["content-type"] == "application/problem+json"
    refusal: Json = response.json()
    assert refusal["status"] == response.status_code
    return refusal


# --- P4 and P5 -------------------------------------------------------------------------------------------------------


async def test_thinking_is_sent_back_only_to_its_own_model(client: Client, server: Server) -> None:
    same, provider = server.scripts.provider(*[message_of(thinking("Hm."), text("Yes.")) for _ in range(2)])
    other, stranger = server.scripts.provider(message_of(text("Why?")))
    chat = await client.chat()
    for model in (same, same, other):
        await client.ask(chat, model=model)
    sent_back = [block.type for message in provider.requests[1].messages for block in message.blocks]
    told_the_other = [block.type for message in stranger.requests[0].messages for block in message.blocks]
    assert sent_back == ["text", "thinking", "text", "text"]
    assert told_the_other == ["text", "text", "text", "text", "text"]
    path = await client.json("GET", f"{chat}/turns")
    stored = [block["type"] for turn in path["turns"] for block in turn["blocks"]]
    assert stored.count("thinking") == 2


@pytest.mark.extensions("documents")
async def test_the_request_of_a_turn_stays_after_changes_of_its_chat(client: Client, server: Server) -> None:
    pause = Pause()
    failing: Reply = [pause, TransientError("overloaded_error", "again", retry_after=0)]
    model, provider = server.scripts.provider(failing, message_of(text("Yes.")))
    chat = await client.chat(system_prompt="Be brief.", settings={"tools": ["doc_tree"], "params": {"max_tokens": 7}})
    new = await client.say(chat, model=model)
    await pause.reached.wait()
    changes = {"system_prompt": "Be long.", "settings": {"tools": [], "params": {"max_tokens": 9}}}
    await client.json("PATCH", chat, json=changes)
    pause.go.set()
    await client.events(new.stream_url)
    first, second = provider.requests
    assert first == second
    assert (first.system, first.params, len(first.tools)) == ("Be brief.", {"max_tokens": 7}, 1)


# --- the client of the documentation ---------------------------------------------------------------------------------


async def test_the_client_of_the_documentation_assembles_the_stored_turn(
    client: Client, server: Server, apply: Apply
) -> None:
    new = await asked(client, server, *conversation())
    events = kept(await client.events(new.stream_url))
    turn = await client.json("GET", new.url)
    for cut in range(len(events)):
        cursor = events[cut].id if cut < len(events) - 1 else None
        rest = await client.events(new.stream_url, cursor) if cursor else []
        whole = assembled(apply, [*events[: cut + 1], *rest])
        assert (whole["blocks"], whole["end"]) == (turn["blocks"], "turn_complete")


async def test_nothing_comes_twice_to_a_client_that_comes_back(client: Client, server: Server) -> None:
    new = await asked(client, server, *conversation())
    events = kept(await client.events(new.stream_url))
    for event in events[:-1]:
        rest = await client.events(new.stream_url, event.id)
        assert all(place(later) > place(event) for later in kept(rest))
