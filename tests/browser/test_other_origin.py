"""A page of another origin may call a server that allows this origin, and no other server. The browser is Chromium."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Error, Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.support.http_client import Client
from tests.support.http_server import Server, answering, pausing, serving
from turnstream.scripted import Pause

pytestmark = pytest.mark.asyncio(loop_scope="session")

FRONTENDS = (Path(__file__).parents[2] / "docs/frontends.md").read_text(encoding="utf-8")


async def _page(_request: Request) -> Response:
    return HTMLResponse("<!doctype html><title>app</title>")


@pytest_asyncio.fixture(loop_scope="session")
async def origin() -> AsyncIterator[str]:
    async with answering(Starlette(routes=[Route("/{path:path}", _page)])) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def server(origin: str, database_url: str) -> AsyncIterator[Server]:
    named: dict[str, Any] = {"cors_origins": origin, "cors_credentials": True, "token_cookie": "session"}
    async with serving(database_url, url_tokens=True, **named) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def page(origin: str, browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(origin)
    yield page
    await context.close()


_SAY = """async ([server, token, options]) => {
  const { Client, apply } = await import(server + '/static/turnstream.js')
  const client = new Client({ base: server, token: () => token, ...options })
  const { assistant_turn: turn } = await client.say(null, 'Hi')
  const { chat_id: chat, id, cursor } = turn
  for await (const event of client.follow(chat, id, { cursor })) if (event.id) apply(turn, event)
  const answer = await fetch(server + '/api/chats', {
    method: 'POST',
    headers: { ...(token && { Authorization: `Bearer ${token}` }), 'Content-Type': 'application/json' },
    body: '{}',
    ...options,
  })
  return [turn.blocks[0].text, answer.headers.get('Location')]
}"""


async def test_the_client_module_works_from_a_named_origin_with_a_token_and_with_a_cookie(
    server: Server, page: Page
) -> None:
    async with Client(server.url, None, await server.token("ada")) as api:
        token = (await api.json("POST", "/api/tokens", json={}))["token"]
    text, location = await page.evaluate(_SAY, [server.url, token, {}])
    assert text == "Hello."
    assert location.startswith("/api/chats/")
    with pytest.raises(Error, match="Authorization"):
        await page.evaluate(_SAY, [server.url, None, {}])
    await page.context.add_cookies([{"name": "session", "value": token, "url": server.url, "httpOnly": True}])
    text, _ = await page.evaluate(_SAY, [server.url, None, {"credentials": "include"}])
    assert text == "Hello."


async def test_a_page_that_is_not_named_is_kept_out(site: Server, page: Page) -> None:
    with pytest.raises(Error, match="Failed to fetch"):
        await page.evaluate("(server) => fetch(server + '/api/models')", site.url)


async def test_an_event_source_of_another_origin_continues_after_the_end_of_its_token(
    server: Server, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0.05)
    section = FRONTENDS.partition("\n## Other origins\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```js\n(.*?)```", section, re.DOTALL)
    pause, ended = Pause(), asyncio.Event()
    async with Client(server.url, None, await server.token("ada")) as api:
        turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
        made: list[str] = []

        async def get_token() -> str:
            wanted = {"chat": turn.assistant["chat_id"], "scopes": ["read"], "seconds": 1 if not made else 900}
            made.append((await api.json("POST", "/api/tokens", json=wanted))["token"])
            if len(made) > 1:
                ended.set()
            return made[-1]

        await page.expose_function("getToken", get_token)
        values = "const [server, chat, turn, cursor] = values; let text = ''; const done = Promise.withResolvers();"
        take = "const take = (name, data) => { if (name === 'block_delta') text += data.text;"
        take += " if (name === 'turn_complete') done.resolve(); };"
        lists = "; ".join(re.findall(r"^const (?:events|ends) = .*$", FRONTENDS, re.MULTILINE))
        script = f"async (values) => {{ {values} {lists}; {take} {example}; await done.promise; return text }}"
        ids = [server.url, turn.assistant["chat_id"], turn.assistant["id"], turn.assistant["cursor"]]
        following = asyncio.create_task(page.evaluate(script, ids))
        await asyncio.wait({following, asyncio.create_task(ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
        pause.go.set()
        assert await following == "One two."
        assert len(made) == 2
