"""Walks: the modules of the server that a request passes, and its calls from a module to a module of a higher layer.
Each walk has a limit, which reveals two kinds of changes: a new layer that only passes arguments on, and a new call to
a higher layer.
"""

import asyncio
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.integration.api.test_waiting import decision
from tests.support.http_server import Server, serving
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

# For each walk: the most modules, and the calls to a higher layer.
WALKS: dict[str, tuple[int, set[tuple[str, str]]]] = {
    "a message": (47, {("domain.log", "stream.live"), ("kit.offload", "api.http.reading")}),
    "a response": (
        65,
        {
            ("api.dispatch", "extensions.openai_api.calls"),
            ("api.dispatch", "extensions.openai_api.responses"),
            ("api.http.reading", "libraries.dialects.schemas"),
            ("api.resolve", "libraries.secrets.request_secrets"),
            ("kit.offload", "api.http.reading"),
            ("kit.offload", "storage.chats.turns"),
            ("libraries.dialects.streams", "extensions.openai_api.stream"),
        },
    ),
    "an approval": (
        48,
        {("domain.log", "stream.live"), ("kit.offload", "api.http.reading"), ("kit.offload", "storage.chats.turns")},
    ),
}

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
# The layer of each folder, from the first contract of import-linter.
FLOORS = {
    name: floor
    for floor, names in enumerate(reversed(PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]))
    for name in re.findall(r"\w+", names)
}

Request = Callable[[], Awaitable[httpx2.Response]]


@dataclass
class Walk:
    """Records the modules that the task of a request passes until its response begins. Tasks that this task starts,
    such as the run of a turn, are left out, and so are the frames of a stream.
    """

    modules: list[str] = field(default_factory=list)
    upward: set[tuple[str, str]] = field(default_factory=set)
    _tasks: set[asyncio.Task[Any] | None] = field(default_factory=set)

    def of(self, app: ASGIApp) -> ASGIApp:
        async def walked(scope: Scope, receive: Receive, send: Send) -> None:
            task = asyncio.current_task()

            async def begun(message: Message) -> None:
                self._tasks.discard(task)
                await send(message)

            self._tasks.add(task)
            await app(scope, receive, begun)

        return walked

    @contextmanager
    def taken(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        module = _module_of(frame)
        if event != "call" or module is None or _current_task() not in self._tasks:
            return
        if module not in self.modules:
            self.modules.append(module)
        caller = frame.f_back
        while caller is not None and _module_of(caller) is None:  # skips the frames of libraries, such as Starlette
            caller = caller.f_back
        origin = caller and _module_of(caller)
        if origin and _floor(module) > _floor(origin):
            self.upward.add((origin, module))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the call is outside of the event loop
        return None


def _module_of(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    return name.removeprefix("turnstream.") if name.startswith("turnstream.") else None


def _floor(module: str) -> int:
    return FLOORS[module.partition(".")[0]]


@tool(approval="always")
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@pytest_asyncio.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, Toolset([pay])) as server:
        yield server


@pytest_asyncio.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {await server.token('ada')}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, trust_env=False) as client:
        yield client


async def asked(http: httpx2.AsyncClient, model: str, status: str) -> tuple[str, dict[str, Any]]:
    """Starts a turn in a new chat. Returns its path, and the turn when it has this status."""
    message = {"blocks": [{"type": "text", "text": "Hello"}], "model": model}
    made = (await http.post("/api/turns", json=message)).json()
    path = made["stream_url"].removesuffix("/stream")
    while (turn := (await http.get(path)).json())["status"] != status:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)
    return path, turn


async def a_message(http: httpx2.AsyncClient, server: Server, pause: Pause) -> Request:
    """Posts a message to a chat that has an answer."""
    model = server.scripts.model(message_of(text("Hello.")), [pause, *message_of(text("Goodbye."))])
    _, turn = await asked(http, model, "complete")
    message = {"blocks": [{"type": "text", "text": "Goodbye"}]}
    return lambda: http.post(f"/api/chats/{turn['chat_id']}/turns", json=message)


async def a_response(http: httpx2.AsyncClient, server: Server, pause: Pause) -> Request:
    """Streams a response that follows another response."""
    model = server.scripts.model(message_of(text("Hello.")), [pause, *message_of(text("Goodbye."))])
    body = {"model": model, "input": "Hello"}
    first = (await http.post("/v1/responses", json=body)).json()
    streamed = {**body, "stream": True, "previous_response_id": first["id"]}
    return lambda: http.send(http.build_request("POST", "/v1/responses", json=streamed), stream=True)


async def an_approval(http: httpx2.AsyncClient, server: Server, pause: Pause) -> Request:
    """Approves a call of a tool."""
    model = server.scripts.model(message_of(tool_use("pay", {"euros": 5}, "a")), [pause, *message_of(text("Done."))])
    path, turn = await asked(http, model, "waiting")
    return lambda: http.post(f"{path}/actions", json={"actions": [decision("approve", turn["actions"][0])]})


@pytest.mark.parametrize("prepare", [a_message, a_response, an_approval])
async def test_a_walk_stays_within_its_limit(
    server: Server,
    http: httpx2.AsyncClient,
    prepare: Callable[[httpx2.AsyncClient, Server, Pause], Awaitable[Request]],
) -> None:
    """Measures the second request of its kind, because the first request also fills caches."""
    app, walk = server.app, Walk()
    pause = Pause()
    pause.go.set()
    await (await (await prepare(http, server, pause))()).aread()
    pause = Pause()
    request = await prepare(http, server, pause)
    assert app.middleware_stack is not None
    app.middleware_stack = walk.of(app.middleware_stack)
    with walk.taken():
        response = await request()
    pause.go.set()
    await response.aread()
    assert response.is_success, response.text
    most, upward = WALKS[prepare.__name__.replace("_", " ")]
    assert (len(walk.modules) <= most, walk.upward) == (True, upward), "\n".join(walk.modules)
