"""Pages with third-party packages against the real server. The pages bundle the code of the documentation."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.node.conftest import BINARIES, ROOT, run
from tests.node.server import explode, reply_to, send_mail, weather, word_of
from tests.support.http_client import Client
from tests.support.http_server import Server, answering, pausing, serving
from turnstream.domain.errors import PermanentError
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.tools.toolset import Toolset

SERVER = "https://chat.example"  # the placeholder in the documentation


def code_of(page: str, language: str) -> str:
    """Returns all code of one language from a documentation page."""
    return "".join(
        re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )


def bundled(folder: Path, name: str, documented: str, *more: str) -> str:
    """Bundles the script of a page in development mode, where React runs effects twice. The script imports the code in
    `documented` as `./documented/{name}`. `more` are options of esbuild.
    """
    (folder / "documented").mkdir(exist_ok=True)
    (folder / "documented" / name).write_text(documented, encoding="utf-8")
    shutil.copy(Path(__file__).with_name(name), folder)
    development = '--define:process.env.NODE_ENV="development"'
    options = ("--bundle", "--jsx=automatic", "--loader:.css=empty", "--external:shiki/*", development)
    return run(folder, BINARIES / "esbuild", name, "--log-level=error", *options, *more)


class Model(ScriptedProvider):
    """A model that replies like the model of `tests.node.server`. An answer to `wait` stops at a new pause,
    `pauses[-1]`.
    """

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.pauses: list[Pause] = []

    def _reply(self, request: ModelRequest) -> Reply:
        if word_of(request) == "fail":
            return [*list(message_of(text("That ")))[:3], PermanentError("invalid_request_error", "It cannot be done.")]
        if word_of(request) != "wait":
            return reply_to(request)
        self.pauses.append(Pause())
        return pausing(self.pauses[-1], "One ", "two.")


@dataclass(frozen=True)
class Wiring:
    origin: str
    model: Model
    server: Server
    api: Client

    async def open(self, browser: Browser, name: str = "") -> Page:
        page = await (await browser.new_context()).new_page()
        page.set_default_timeout(20_000)
        await page.goto(f"{self.origin}#{name}")
        return page

    def cut(self) -> None:
        """Aborts all connections of the server."""
        for connection in list(self.server.uvicorn.server_state.connections):
            connection.transport.abort()

    async def newest_status(self) -> str:
        """Waits until the newest answer in the most recently changed chat ends. Returns its status."""
        chat = (await self.api.get("/api/chats")).json()["chats"][0]["id"]
        turn = (await self.api.get(f"/api/chats/{chat}/turns")).json()["turns"][-1]["id"]
        await self.api.get(f"/api/chats/{chat}/turns/{turn}/stream")  # the stream closes at the end of the turn
        status: str = (await self.api.get(f"/api/chats/{chat}/turns/{turn}")).json()["status"]
        return status


@asynccontextmanager
async def wired(script: str, database_url: str) -> AsyncIterator[Wiring]:
    """Serves a page with the script from another origin, and starts its server."""
    body = ""

    async def page_of(_request: Request) -> Response:
        return HTMLResponse(f'<!doctype html><meta charset="utf-8"><body></body><script>{body}</script>')

    toolset = Toolset([weather, explode, send_mail], max_result_chars=1000)
    model = Model()
    offers = [ProviderModels(model, ["script"])]
    async with (
        answering(Starlette(routes=[Route("/", page_of)])) as origin,
        serving(database_url, toolset, offers, model="script", cors_origins=origin) as server,
        Client(server.url) as api,
    ):
        body = script.replace(SERVER, server.url).replace("</script", "<\\/script")
        yield Wiring(origin, model, server, api)
