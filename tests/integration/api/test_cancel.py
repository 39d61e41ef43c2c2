import pytest

from tests.support.http_client import Client, Said, words_of
from tests.support.http_server import Server, pausing, serving
from tests.support.openapi_document import Document
from turnstream.scripted import Pause, message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def running(api: Client, server: Server) -> Said:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    return turn


async def test_a_cancelled_turn_keeps_its_text(api: Client, server: Server) -> None:
    turn = await running(api, server)
    await api.json("POST", f"{turn.url}/cancel", 202)
    events = await api.events(turn.stream_url)
    assert events[-1].name == "turn_cancelled"
    ended = await api.json("GET", turn.url)
    assert (ended["status"], ended["stop_reason"], ended["error"]) == ("cancelled", "cancelled", None)
    assert [(block["text"], block["interrupted"]) for block in ended["blocks"]] == [("One ", True)]
    assert ended["usage"] == {"input_tokens": 10, "output_tokens": 1}


async def test_cancelling_twice_says_the_same_twice(api: Client, server: Server) -> None:
    turn = await running(api, server)
    await api.json("POST", f"{turn.url}/cancel", 202)
    await api.events(turn.stream_url)
    assert await api.json("POST", f"{turn.url}/cancel") == await api.json("POST", f"{turn.url}/cancel")


async def test_a_turn_that_has_ended_is_answered_as_it_is(api: Client) -> None:
    turn = await api.ask(await api.chat())
    answer = await api.json("POST", f"{turn.url}/cancel")
    assert (answer["status"], answer["id"]) == ("complete", turn.assistant["id"])
    assert words_of(answer) == "Hello."


async def test_a_user_turn_cannot_be_cancelled(api: Client) -> None:
    await api.json("POST", f"{(await api.ask(await api.chat())).user_url}/cancel", 409)


async def test_a_turn_that_waits_for_its_turn_ends_at_once(database_url: str, document: Document) -> None:
    async with serving(database_url, concurrent_turns=1) as server, Client(server.url, document) as api:
        first = await running(api, server)
        queued = await api.say(await api.chat())
        assert queued.assistant["status"] == "queued"
        cancelled = await api.json("POST", f"{queued.url}/cancel")
        assert (cancelled["status"], cancelled["blocks"], cancelled["rounds"]) == ("cancelled", [], [])
        events = await api.events(queued.stream_url)
        assert [event.name for event in events] == ["turn_start", "turn_cancelled"]
        await api.json("POST", f"{first.url}/cancel", 202)


async def test_every_call_of_a_cancelled_turn_has_a_result_so_that_the_chat_can_continue(
    api: Client, server: Server
) -> None:
    pause = Pause()
    call, *rest = tool_use("doc_tree", {}, "call_1")
    asked = message_of([call, *rest], text("and"))
    model, provider = server.scripts.provider([*list(asked)[:-1], pause], message_of(text("Yes.")))
    turn = await api.say(await api.chat(), model=model)
    await pause.reached.wait()
    await api.json("POST", f"{turn.url}/cancel", 202)
    await api.events(turn.stream_url)
    ended = await api.json("GET", turn.url)
    results = [block for block in ended["blocks"] if block["type"] == "tool_result"]
    assert [(result["tool_use_id"], result["is_error"]) for result in results] == [("call_1", True)]
    chat = turn.url.partition("/turns")[0]
    assert words_of((await api.ask(chat, "Go on", model=model)).assistant) == "Yes."
    assert len(provider.requests) == 2


async def test_a_message_that_is_cancelled_before_its_turn_began_is_not_sent_to_a_model(
    api: Client, server: Server
) -> None:
    pause, chat = Pause(), await api.chat()
    replies = [list(message_of(text("Yes."))) for _ in range(2)]
    model, provider = server.scripts.provider(pausing(pause, "One ", "two."), *replies)
    first = await api.say(chat, "First", model=model)
    await pause.reached.wait()
    second, third = [await api.say(chat, each, model=model, on_busy="enqueue") for each in ("Second", "Third")]
    await api.json("POST", f"{second.url}/cancel", 202)
    pause.go.set()
    for turn in (first, second, third):
        await api.events(turn.stream_url)
    ended = await api.json("GET", second.url)
    assert (ended["status"], ended["stop_reason"], ended["rounds"]) == ("cancelled", "withdrawn", [])
    await api.ask(chat, "Fourth", model=model)
    assert [
        [block.text for message in request.messages for block in message.blocks] for request in provider.requests
    ] == [
        ["First"],
        ["First", "One two.", "Third"],
        ["First", "One two.", "Third", "Yes.", "Fourth"],
    ]
