from contextlib import aclosing

import pytest

from tests.support.scripted_server import ScriptedServer, answer, sse, stream
from turnstream_client.errors import RequestRejected
from turnstream_client.events import ConnectionEvent, ServerEvent
from turnstream_client.http import AsyncClient

SOON = "retry: 1\n\n"
END = sse("1-9-0", "turn_complete", '{"stop_reason":"end_turn","usage":{}}')


async def follow(client: AsyncClient, cursor: str | None = None) -> list[ServerEvent]:
    async with aclosing(client.follow("c", "t", cursor).events()) as events:
        return [event async for event in events]


def names(events: list[ServerEvent]) -> list[str]:
    return [event.name for event in events]


async def test_events_are_yielded_in_order_until_the_end(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [stream(SOON, sse("1-1-0", "turn_start"), ": a comment\n\n", END)]
    assert names(await follow(client)) == [ConnectionEvent.OPENED, "turn_start", "turn_complete"]
    (request,) = scripted.requests
    assert request.path == "/api/chats/c/turns/t/stream"
    assert request.headers["authorization"] == "Bearer secret"
    assert "last-event-id" not in request.headers


async def test_a_lost_connection_resumes_after_the_last_complete_event(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    scripted.answers = [
        stream(SOON, sse("1-1-0", "turn_start"), 'id: 1-2-0\nevent: round_start\ndata: {"round"'),
        stream(SOON, sse("1-2-0", "round_start"), "event: tool_progress\ndata: {}\n\n"),
        stream(END),
    ]
    events = await follow(client)
    assert [name for name in names(events) if name not in {ConnectionEvent.OPENED, ConnectionEvent.LOST}] == [
        "turn_start",
        "round_start",
        "tool_progress",
        "turn_complete",
    ]
    assert [request.headers.get("last-event-id") for request in scripted.requests] == [None, "1-1-0", "1-2-0"]


async def test_a_stream_begins_at_the_given_cursor(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [stream(END)]
    await follow(client, "1-4-7")
    assert scripted.requests[0].headers["last-event-id"] == "1-4-7"


async def test_a_client_may_request_a_mark_behind_the_stored_events(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    scripted.answers = [stream(sse("1-1-0", "turn_start"), "event: caught_up\ndata: {}\n\n", END)]
    async with aclosing(client.follow("c", "t", caught_up=True).events()) as events:
        seen = [event async for event in events]
    assert names(seen) == [ConnectionEvent.OPENED, "turn_start", "caught_up", "turn_complete"]
    assert scripted.requests[0].path == "/api/chats/c/turns/t/stream?caught_up=true"


async def test_no_content_is_the_end(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [answer(status="204 No Content")]
    assert await follow(client, "1-9-0") == []


async def test_a_reader_that_stops_can_continue_there(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [stream(sse("1-1-0", "turn_start"), sse("1-2-0", "round_start")), stream(END)]
    follower = client.follow("c", "t")
    async with aclosing(follower.events()) as events:
        async for event in events:
            if event.name == "turn_start":
                break
    assert follower.cursor == "1-1-0"
    async with aclosing(follower.events()) as events:
        assert "turn_complete" in [event.name async for event in events]
    assert scripted.requests[1].headers["last-event-id"] == "1-1-0"


async def test_a_busy_server_is_asked_again(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [
        stream(SOON),
        answer(b"", "503 Service Unavailable", "text/plain", "Retry-After: 0"),
        stream(END),
    ]
    events = await follow(client)
    assert names(events) == [
        ConnectionEvent.OPENED,
        ConnectionEvent.LOST,
        ConnectionEvent.LOST,
        ConnectionEvent.OPENED,
        "turn_complete",
    ]
    assert events[2].data["reason"] == "the server answered 503 Service Unavailable"


async def test_a_turn_that_is_gone_is_not_asked_for_again(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [answer(b'{"title":"Not found","status":404,"detail":"there is no turn t"}', "404 Not Found")]
    with pytest.raises(RequestRejected, match="there is no turn t"):
        await follow(client)


async def test_a_response_that_is_no_stream_is_not_asked_for_again(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    scripted.answers = [answer(b"<html>", kind="text/html")]
    with pytest.raises(RequestRejected, match="does not answer like a turnstream server"):
        await follow(client)
