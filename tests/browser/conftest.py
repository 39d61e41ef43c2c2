"""A real Chromium before the real server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.browser.person import Person, sit_down
from tests.browser.scenes import Harbour
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.programs import path_of

SitDown = Callable[..., Awaitable[Person]]

expect.set_options(timeout=60_000)  # milliseconds: a loaded machine is no reason to fail


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    chromium = path_of("Chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def people(site: object, browser: Browser) -> AsyncIterator[SitDown]:
    """`await people(url, chat)`: a person with a browser of their own. Any error in it fails the test.

    `site` is asked for so that browsers are closed before the server is.
    """
    async with AsyncExitStack() as stack:
        seated: list[Person] = []

        async def sit(url: str, chat: str = "", **options: Any) -> Person:
            address = f"{url}/#{chat}" if chat else url
            person = await stack.enter_async_context(sit_down(browser, address, **options))
            seated.append(person)
            return person

        yield sit
        for person in seated:
            assert person.troubles() == []


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
