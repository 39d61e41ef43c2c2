"""The example research_assistant: three agents and a long tool, across a closed browser and a deploy."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.faults.model import Call, Gate, Model, Step, Use, model_api
from tests.support.http_client import Client, turn_url
from tests.support.pages import ROOT
from tests.support.server_process import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("agents", "http_tools")]

PLACES = ("Bergen", "Porto", "Split")


def script(call: Call) -> Iterable[Step]:
    if call.words in PLACES:
        if call.rounds == 0:
            return ("I look it up. ", Use("archive", {"word": call.words}))
        return (Gate("research"), f"{call.words} is deep.")
    if call.rounds == 0:
        researchers = (Use("researcher", {"task": place}) for place in PLACES)
        return ("I ask. ", *researchers, Use("count_ships", {"year": 1900}))
    return ("All are deep.",)


@dataclass
class Office:
    """An office that counts ships: it accepts orders, and posts each result much later."""

    orders: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.orders.append(await request.json())
        return web.Response()

    async def report(self, server: str, text: str) -> dict[str, Any]:
        (order,) = self.orders
        async with Client(server, token=order["token"]) as client:
            return dict(await client.json("POST", order["path"], 200, json={"output": text}))


@pytest_asyncio.fixture(loop_scope="session")
async def office() -> AsyncIterator[Office]:
    office, app = Office(), web.Application()
    app.router.add_post("/orders", office.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    office.url = f"http://127.0.0.1:{runner.addresses[0][1]}/orders"
    yield office
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[Model]:
    async with model_api(script) as model:
        model.open("effect")
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, tmp_path: Path, model: Model, office: Office) -> AsyncIterator[tuple[Server, Server]]:
    for name in ("tools.toml", "ships.py"):
        shutil.copy(ROOT / "examples/research_assistant" / name, tmp_path)
    settings = {
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": model.url,
        "ARCHIVE_URL": f"{model.url}/effect",
        "OFFICE_URL": office.url,
        "TURNSTREAM_TOOLS_FILE": "tools.toml",
        "TURNSTREAM_TOOLSET": "ships:count_ships",
        "TURNSTREAM_LEASE": "5",
    }
    servers = (Server(database_url, tmp_path, settings), Server(database_url, tmp_path, settings))
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.close()


@pytest.mark.timeout(240)  # the test starts four processes
async def test_a_research_survives_a_closed_browser_and_a_deploy(
    people: SitDown, site: tuple[Server, Server], model: Model, office: Office
) -> None:
    first, second = site
    async with Client(first.url) as api:
        chat = await use(api, "assistant")
    ada = await people(first.url, chat)
    await ada.say("Which harbour is deep?")
    await expect(ada.page.locator(".card")).to_have_count(4)
    await model.until_reached("research", 3)
    await ada.page.context.close()

    for server in (first, second):
        assert await server.terminate() == 0
        await server.start()
    await model.until_reached("research", 6)  # each of the three agents was taken over at least once
    async with Client(second.url) as api:
        (turn,) = [
            each for each in (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"] if each["role"] == "assistant"
        ]
        assert turn["status"] != "complete"
        assert [await office.report(second.url, "340 ships.") for _ in range(2)] == [
            {"applied": True, "reason": None},
            {"applied": False, "reason": "settled"},
        ]
        model.open("research")
        ada = await people(second.url, chat)
        await ada.sees("All are deep.")
        await ada.sees_end()
        await ada.sees_what_is_stored(api)
        stored = await api.json("GET", turn_url(turn))
    results = [block["text"] for block in stored["blocks"] if block["type"] == "tool_result"]
    assert sorted(results) == sorted(["340 ships.", *(f"{place} is deep." for place in PLACES)])
    assert model.effects == dict.fromkeys(PLACES, 1)
    assert len(office.orders) == 1
    asked = Counter(call.words for call in model.calls if call.rounds == 0)
    assert asked == Counter(["Which harbour is deep?", *PLACES]), "no work that was done is done again"
