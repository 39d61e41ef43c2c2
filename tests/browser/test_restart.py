"""The server process is killed while people watch an answer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.browser.conftest import SitDown
from tests.support.http_client import Client
from tests.support.server_process import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(database_url, tmp_path, {"TURNSTREAM_DEMO_DELAY": "0.05", "TURNSTREAM_MODEL": "demo"})
    await server.start()
    yield server
    await server.close()


@pytest.mark.timeout(180)  # the test starts two processes
async def test_an_answer_continues_after_the_server_was_killed_and_restarted(people: SitDown, site: Server) -> None:
    ada = await people(site.url)
    ada.expects("Failed to load resource", "ERR_")
    await ada.say("How long does the battery last?")
    await ada.sees("the tools are real")
    await site.kill()
    await ada.page.get_by_text("Reconnecting").wait_for()
    await site.start(TURNSTREAM_DEMO_DELAY="0")
    await ada.sees_end()
    await ada.page.get_by_text("Reconnecting").wait_for(state="hidden")
    async with Client(site.url) as api:
        await ada.sees_what_is_stored(api)
