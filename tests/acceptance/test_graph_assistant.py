"""A graph assistant with tools in the browser, across closed tabs, killed servers, and other clients."""

import asyncio
from collections.abc import AsyncIterator
from signal import SIGKILL

import pytest
import pytest_asyncio

from tests.support.assistants.graph import FIND, STYLE, Browser, painter
from tests.support.assistants.model import Json, Model, model_api
from tests.support.assistants.visit import (
    answered,
    calls_of,
    last_words,
    results_of,
    settings_for,
    told_of_results,
    until_waiting,
    whole,
)
from tests.support.http_client import Client, Said
from tests.support.reading import Reader
from tests.support.server_process import Server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

BLUE_CATS = "Find all cats and make them blue"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(
    shared_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Server, Model]]:
    async with model_api(painter) as model:
        server = Server(shared_database_url, tmp_path_factory.mktemp("graph"), settings_for(model))
        await server.start()
        yield server, model
        await server.close()


@pytest.fixture
def server(running: tuple[Server, Model]) -> Server:
    return running[0]


@pytest.fixture
def model(running: tuple[Server, Model]) -> Model:
    running[1].requests.clear()
    return running[1]


async def ask(api: Client, words: str) -> Said:
    return await api.say(await api.chat(), words, tools=[FIND, STYLE])


async def play(api: Client, turn: Said, browser: Browser) -> None:
    """Acts like the page with the graph: runs every requested call until the turn ends."""
    async with api.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                await post(api, turn, *map(browser.act, event.data["calls"]))


async def post(api: Client, turn: Said, *actions: Json) -> Json:
    found: Json = await api.json("POST", f"{turn.url}/actions", 202, json={"actions": list(actions)})
    return found


async def test_the_cats_are_found_then_painted_then_the_answer_comes(server: Server, model: Model) -> None:
    browser = Browser()
    async with Client(server.url) as api:
        turn = await ask(api, BLUE_CATS)
        await play(api, turn, browser)
        ended, events = await whole(api, turn)
    assert browser.colors == {"tom": "blue", "kitty": "blue"}
    assert calls_of(ended) == [
        (1, "findNodes", {"kind": "cat"}),
        (2, "styleNodes", {"ids": ["tom", "kitty"], "color": "blue"}),
    ]
    assert results_of(ended) == [('["tom","kitty"]', False), ('{"styled":2}', False)]
    assert last_words(ended) == "Done: 2 nodes are blue."
    assert (ended["actions"], ended["degraded"]) == ([], [])
    assert answered(events) == [[], [("findNodes", False)], [("styleNodes", False)]]
    assert [event.name for event in events].count("action_required") == 2
    assert told_of_results(model) == [["toolu_1_2"], ["toolu_2_1"]]
    model.check_prefixes()


async def test_nothing_is_painted_where_nothing_was_found(server: Server, model: Model) -> None:
    browser = Browser()
    async with Client(server.url) as api:
        turn = await ask(api, "Find all unicorns and make them pink")
        await play(api, turn, browser)
        ended, _ = await whole(api, turn)
    assert (results_of(ended), browser.colors) == ([("[]", False)], {})
    assert last_words(ended) == "There are no unicorns in the graph, so I changed nothing."
    assert len(model.requests) == 2


async def test_the_tools_of_a_turn_are_those_of_the_next_one_too(server: Server, model: Model) -> None:
    browser = Browser()
    async with Client(server.url) as api:
        chat = await api.chat()
        await play(api, await api.say(chat, BLUE_CATS, tools=[FIND, STYLE]), browser)
        turn = await api.say(chat, "Find all dogs and make them red")
        await play(api, turn, browser)
        await whole(api, turn)
    assert browser.colors == {"tom": "blue", "kitty": "blue", "rex": "red"}
    model.check_prefixes()


async def test_a_browser_is_closed_a_server_is_killed_and_another_client_brings_the_result(
    server: Server, model: Model
) -> None:
    browser = Browser()
    async with Client(server.url) as api, Client(server.url) as other:
        turn = await ask(api, BLUE_CATS)
        tab = Reader(api, turn.stream_url)
        await until_asked_and_closed(tab)
        await until_waiting(other, turn)
        await server.restart(SIGKILL)
        found = await until_waiting(other, turn)
        (find,) = found["actions"]
        await post(other, turn, browser.act(find))
        (style,) = (await until_waiting(other, turn, without=find["tool_use_id"]))["actions"]
        await post(other, turn, browser.act(style))
        await tab.follow()
        ended = await other.json("GET", turn.url)
    assert (find["name"], style["name"]) == ("findNodes", "styleNodes")
    assert browser.colors == {"tom": "blue", "kitty": "blue"}
    assert last_words(ended) == "Done: 2 nodes are blue."
    tab.check_whole(ended)
    assert tab.connections == 2
    assert (tab.seen.count("turn_start"), tab.seen.count("action_required"), tab.seen.count("reset")) == (1, 2, 0)
    assert len(model.requests) == 3
    model.check_prefixes()


async def until_asked_and_closed(tab: Reader) -> None:
    following = asyncio.create_task(tab.follow())
    await tab.until(lambda tab: bool(tab.turn.actions))
    following.cancel()
    await asyncio.wait([following])
