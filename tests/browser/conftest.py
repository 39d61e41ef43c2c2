"""A real Chromium against the real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.browser.person import Person, sit_down
from tests.browser.scenes import Harbour
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.programs import path_of

SitDown = Callable[..., Awaitable[Person]]

expect.set_options(timeout=60_000)  # milliseconds; tolerates a slow machine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    chromium = path_of("Chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def people(site: object, browser: Browser) -> AsyncIterator[SitDown]:
    """Opens the page at a chat in a new browser context for one person, as in `await people(url, chat)`. Any error in
    the page fails the test.

    The dependency on `site` makes pytest close the browsers before the server.
    """
    async with AsyncExitStack() as stack:
        seated: list[tuple[str, Person]] = []

        async def sit(url: str, chat: str = "", **options: Any) -> Person:
            address = f"{url}/#{chat}" if chat else url
            person = await stack.enter_async_context(sit_down(browser, address, **options))
            seated.append((url, person))
            return person

        yield sit
        for url, person in seated:
            troubles = person.troubles()
            if not await _is_up(url):  # the test's own server exited before the page was closed
                troubles = [trouble for trouble in troubles if "ERR_CONNECTION_REFUSED" not in trouble]
            assert troubles == []


async def _is_up(url: str) -> bool:
    address = urlsplit(url)
    try:
        _, writer = await asyncio.open_connection(address.hostname, address.port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@pytest.fixture
def harbour() -> Harbour:
    return Harbour()


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, harbour: Harbour) -> AsyncIterator[Server]:
    async with serving(database_url, harbour.toolset()) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def api(site: Server) -> AsyncIterator[Client]:
    async with Client(site.url) as client:
        yield client
