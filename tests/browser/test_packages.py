"""The packages for JavaScript in Chromium, bundled into a page of another origin."""

import html
import json
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from playwright.async_api import Response as PageResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.node.conftest import BINARIES, node, packages, run
from tests.support.http_server import answering, pausing, serving
from turnstream.scripted import Pause

__all__ = ["node", "packages"]

pytestmark = [
    pytest.mark.extensions("ai_sdk"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.needs("Chromium", "npm"),
    pytest.mark.timeout(180),
]

SOURCE = Path(__file__).with_name("packages.jsx")


@pytest.fixture(scope="session")
def bundle(packages: Path) -> str:
    (packages / "page.jsx").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    development = '--define:process.env.NODE_ENV="development"'  # in this mode React runs effects twice
    return run(packages, BINARIES / "esbuild", "page.jsx", "--bundle", "--jsx=automatic", development)


async def test_hook_and_transport_come_back_after_a_cut(bundle: str, browser: Browser, database_url: str) -> None:
    options = ""

    async def page_of(_request: Request) -> Response:
        return HTMLResponse(f'<!doctype html><body data-options="{html.escape(options)}"><script>{bundle}</script>')

    async with (
        answering(Starlette(routes=[Route("/", page_of)])) as origin,
        serving(database_url, cors_origins=origin) as server,
    ):
        pauses = Pause(), Pause()
        model = server.scripts.model(*(pausing(pause, "One ", "two.") for pause in pauses))
        options = json.dumps({"base": server.url, "model": model})
        page = await (await browser.new_context()).new_page()
        streams: list[str] = []
        page.on("request", lambda request: streams.append(request.url) if "/stream" in request.url else None)
        await page.goto(origin)
        # For each button: the path of the stream that is cut, and the path of the next stream. The first text may come
        # from the chat's page.
        ways = ("#hook", "/stream", "/stream"), ("#sdk", "/api/ai-sdk/chat", "/stream?turn=")
        for (name, cut, following), pause in zip(ways, pauses, strict=True):
            async with page.expect_response(partial(_answers, cut)):
                await page.click(f"{name} button")
            await expect(page.locator(f"{name} span")).to_have_text("Hi|One ")
            before = len(streams)
            for connection in list(server.uvicorn.server_state.connections):
                connection.transport.abort()
            pause.go.set()
            await expect(page.locator(name)).to_have_attribute("data-state", "ready")
            await expect(page.locator(f"{name} span")).to_have_text("Hi|One two.")
            assert any(following in url for url in streams[before:])
        await page.context.close()


def _answers(path: str, response: PageResponse) -> bool:
    return path in response.url and response.request.method != "OPTIONS"
