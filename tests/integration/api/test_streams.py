"""The events that a client receives, and the rest that it receives after a reconnect."""

import asyncio

import pytest

from tests.support.http_client import Client, Event, Said, assembled, words_of
from tests.support.http_server import Server, pausing, serving
from turnstream.engine.frame_clock import FrameClock
from turnstream.scripted import Pause, message_of, text, thinking, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def answered(api: Client, server: Server) -> Said:
    model = server.scripts.model(
        message_of(thinking("Hm"), tool_use("doc_tree", {"folder": ""}, "call_1")),
        message_of(text("Nothing ", "there.")),
    )
    return await api.ask(await api.chat(), model=model)


def number(event: Event) -> tuple[int, ...]:
    assert event.id is not None
    return tuple(map(int, event.id.split("-")))


@pytest.mark.extensions("documents")
async def test_a_stream_tells_the_whole_turn_in_order(api: Client, server: Server) -> None:
    turn = await answered(api, server)
    events = await api.events(turn.stream_url)
    assert [event.name for event in events if event.name != "block_delta"] == [
        *("turn_start", "round_start", "block_start", "block_stop", "block_start", "block_stop", "round_stop"),
        *("block_start", "block_stop", "round_start", "block_start", "block_stop", "round_stop", "turn_complete"),
    ]
    assert events[0].data["turn"] == turn.assistant["id"]
    assert events[-1].data["usage"] == turn.assistant["usage"]
    second_round = [event for event in events if event.name == "round_start"][1]
    assert second_round.data["answered"] == [{"tool_use_id": "call_1", "name": "doc_tree", "is_error": False}]
    assert assembled([], events) == [block["text"] for block in turn.assistant["blocks"]]


async def test_ids_only_grow_and_each_is_a_valid_cursor(api: Client, server: Server) -> None:
    turn = await answered(api, server)
    events = await api.events(turn.stream_url)
    assert [number(event) for event in events] == sorted({number(event) for event in events})
    for place, event in enumerate(events[:-1], 1):
        assert await api.events(turn.stream_url, event.id) == events[place:]


async def test_after_the_last_event_there_is_nothing_left_for_ever(api: Client) -> None:
    turn = await api.ask(await api.chat())
    last = (await api.events(turn.stream_url))[-1]
    assert last.id == turn.assistant["cursor"]
    for _ in range(2):
        answer = await api.get(turn.stream_url, headers={"Last-Event-ID": last.id or ""})
        assert answer.status_code == 204
        assert answer.headers["cache-control"] == "no-store, no-transform"
    assert (await api.get(turn.stream_url, params={"cursor": last.id or ""})).status_code == 204


async def test_a_cursor_is_taken_from_the_header_then_from_the_query(api: Client) -> None:
    turn = await api.ask(await api.chat())
    events = await api.events(turn.stream_url)
    by_query = f"{turn.stream_url}?cursor={events[2].id}"
    assert await api.events(by_query) == events[3:]
    assert await api.events(by_query, events[-2].id) == events[-1:]
    assert await api.events(f"{turn.stream_url}?cursor=") == events


@pytest.mark.parametrize("cursor", ["x", "1", "1-2", "1-2-3-4", "-1-2-3", "1-2-x", "1-2-3 4", "1-2-9999999999999999"])
async def test_a_cursor_that_is_no_cursor_is_refused_by_name(api: Client, cursor: str) -> None:
    turn = await api.ask(await api.chat())
    by_header = await api.get(turn.stream_url, headers={"Last-Event-ID": cursor})
    by_query = await api.get(turn.stream_url, params={"cursor": cursor})
    assert (by_header.status_code, by_query.status_code) == (400, 400)
    assert by_header.json()["errors"][0]["field"] == "Last-Event-ID"
    assert by_query.json()["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize("cursor", ["2-1-4", "2-3-0", "999999999-4-0"])
async def test_a_cursor_of_an_attempt_that_the_turn_has_not_had_is_reset(api: Client, cursor: str) -> None:
    turn = await api.ask(await api.chat())
    whole = await api.events(turn.stream_url)
    events = await api.events(turn.stream_url, cursor)
    assert (events[0].name, events[0].data) == ("reset", {"attempt": 1, "index": 0})
    assert events[1:] == whole[1:]


async def test_a_cursor_beyond_the_content_is_moved_back(api: Client) -> None:
    turn = await api.ask(await api.chat())
    events = await api.events(turn.stream_url, "1-2-7")
    assert events[0].name == "reset"
    whole = await api.events(turn.stream_url)
    assert events[1:] == whole[-len(events) + 1 :]


async def test_from_each_cursor_one_notice_follows_the_stored_events(api: Client, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    there: list[Event] = []
    async with api.follow(turn.stream_url) as events:
        async for event in events:
            there.append(event)
            if event.name == "block_delta":
                break
    ids = [event.id for event in there if event.id]
    for place, cursor in enumerate([None, *ids]):
        seen: list[Event] = []
        async with api.follow(f"{turn.stream_url}?caught_up=true", cursor) as events:
            async for event in events:
                seen.append(event)
                if event.name == "caught_up":
                    break
        assert (event.id, event.data) == (None, {})
        assert [each.id for each in seen if each.id] == ids[place:]
    async with api.follow(f"{turn.stream_url}?caught_up=true") as events:
        pause.go.set()
        names = [event.name async for event in events]
    assert names.count("caught_up") <= 1
    assert names[-1] == "turn_complete"


async def test_a_turn_that_has_ended_has_no_such_notice(api: Client) -> None:
    turn = await api.ask(await api.chat())
    events = await api.events(f"{turn.stream_url}?caught_up=true")
    assert events[-1].name == "turn_complete"
    assert "caught_up" not in [event.name for event in events]
    after = await api.get(f"{turn.stream_url}?caught_up=true", headers={"Last-Event-ID": events[-1].id or ""})
    assert after.status_code == 204
    refused = await api.json("GET", f"{turn.stream_url}?caught_up=yes", 422)
    assert refused["errors"][0]["field"] == "caught_up"


async def test_a_user_turn_has_no_stream(api: Client) -> None:
    await api.json("GET", f"{(await api.ask(await api.chat())).user_url}/stream", 409)


async def test_the_first_byte_comes_before_the_model_says_anything(api: Client, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model([pause, *message_of(text("Late."))]))
    await pause.reached.wait()
    async with api.stream("GET", turn.stream_url) as response:
        assert response.headers["cache-control"] == "no-store, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        assert await anext(response.aiter_bytes())
    pause.go.set()


async def test_a_reader_who_leaves_stops_nothing(api: Client, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    async with api.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "block_delta":
                break
    pause.go.set()
    rest = await api.events(turn.stream_url, event.id)
    assert rest[-1].name == "turn_complete"
    assert words_of(await api.json("GET", turn.url)) == "One two."


async def test_many_readers_get_the_same(api: Client, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    async with api.follow(turn.stream_url) as first, api.follow(turn.stream_url) as second:
        pause.go.set()
        assert assembled([], [event async for event in first]) == ["One two."]
        assert assembled([], [event async for event in second]) == ["One two."]


async def test_while_a_reader_wants_each_delta_at_once_its_turn_waits_for_no_tick(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, tick, pause = asyncio.Event(), asyncio.Event(), Pause()

    async def wait_for_tick(_clock: FrameClock) -> None:
        waits.set()
        await tick.wait()

    monkeypatch.setattr(FrameClock, "wait_for_tick", wait_for_tick)
    async with serving(database_url, frames="cheap") as server, Client(server.url) as api:
        chat = await api.chat()
        turn = await api.say(chat, model=server.scripts.model([pause, *message_of(text("One ", "two ", "three."))]))
        await pause.reached.wait()
        async with api.follow(f"{turn.stream_url}?frames=never") as events, api.follow(turn.stream_url):
            await anext(events)
            pause.go.set()
            assert [event.name async for event in events][-1] == "turn_complete"
        assert not waits.is_set()
        turn = await api.say(chat, model=server.scripts.model(message_of(text("Four."))))
        async with api.follow(turn.stream_url) as events:
            await waits.wait()
            tick.set()
            assert [event.name async for event in events][-1] == "turn_complete"


async def test_frames_are_never_or_as_the_server_does(api: Client) -> None:
    turn = await api.say(await api.chat())
    refused = await api.json("GET", f"{turn.stream_url}?frames=always", 422)
    assert refused["errors"][0]["field"] == "frames"
