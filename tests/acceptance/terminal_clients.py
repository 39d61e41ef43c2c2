"""Clients that run `turnstream chat` in a script or on a terminal, and a probe for turns on the server."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import httpx2

from tests.acceptance.pseudo_terminal import PseudoTerminal
from tests.support.server_process import TURNSTREAM, clean_environment

Json = dict[str, Any]
_TIMEOUT: Final = 150  # seconds; tolerates a machine that is busy with other tests


class Script:
    """`turnstream chat` with pipes instead of a terminal."""

    def __init__(self, server: str, folder: Path, *arguments: str, stdin: str = "", **settings: str) -> None:
        self.process = subprocess.Popen(
            [TURNSTREAM, "chat", *arguments],
            cwd=folder,
            env=clean_environment() | {"TURNSTREAM_URL": server, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stdin = stdin

    async def end(self) -> tuple[int, str, str]:
        """Waits for the exit. Returns the exit code, standard output and standard error."""
        out, notes = await asyncio.to_thread(self.process.communicate, self._stdin, _TIMEOUT)
        return self.process.returncode, out, notes


class RunScript(Protocol):
    def __call__(self, server: str, *arguments: str, stdin: str = "", **settings: str) -> Script: ...


class Served(Protocol):
    @property
    def url(self) -> str: ...


class OpenTerminal(Protocol):
    def __call__(self, server: Served, *arguments: str, **settings: str) -> PseudoTerminal: ...


@contextmanager
def scripts(folder: Path) -> Iterator[RunScript]:
    started: list[Script] = []

    def start(server: str, *arguments: str, stdin: str = "", **settings: str) -> Script:
        started.append(Script(server, folder, *arguments, stdin=stdin, **settings))
        return started[-1]

    yield start
    for script in started:
        with script.process as process:
            process.kill()


@contextmanager
def terminals(folder: Path) -> Iterator[OpenTerminal]:
    """Yields a function that opens terminals. They have no editor unless a setting names one."""
    started: list[PseudoTerminal] = []

    def start(server: Served, *arguments: str, **settings: str) -> PseudoTerminal:
        environment = clean_environment() | {"TURNSTREAM_URL": server.url, "VISUAL": "", "EDITOR": "", **settings}
        started.append(PseudoTerminal([TURNSTREAM, "chat", *arguments], environment, folder))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


class TurnProbe:
    """Reads the newest turn from the server."""

    def __init__(self, server: Served) -> None:
        self._http = httpx2.AsyncClient(base_url=server.url)

    async def __aenter__(self) -> "TurnProbe":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def newest(self) -> Json | None:
        turns = await self.path()
        return turns[-1] if turns else None

    async def path(self) -> list[Json]:
        """Returns the path to the newest turn of the newest chat."""
        chats = (await self._http.get("/api/chats")).json()["chats"]
        if not chats:
            return []
        turns: list[Json] = (await self._http.get(f"/api/chats/{chats[0]['id']}/turns")).json()["turns"]
        return turns

    async def until(self, holds: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(_TIMEOUT):
            while True:
                turn = await self.newest()
                if turn is not None and holds(turn):
                    return turn
                await asyncio.sleep(0.02)

    async def ask(self, question: str) -> None:
        answer = await self._http.post("/api/turns", json={"blocks": [{"type": "text", "text": question}]})
        assert answer.status_code == 201

    async def enqueue(self, *messages: str) -> None:
        """Posts messages that are queued behind the newest turn."""
        chat = (await self.path())[-1]["chat_id"]
        for message in messages:
            body = {"blocks": [{"type": "text", "text": message}], "on_busy": "enqueue"}
            answer = await self._http.post(f"/api/chats/{chat}/turns", json=body)
            assert answer.status_code == 201

    async def cancel(self) -> None:
        """Cancels the newest turn."""
        turn = (await self.path())[-1]
        await self._http.post(f"/api/chats/{turn['chat_id']}/turns/{turn['id']}/cancel")

    async def count(self) -> int:
        chats: list[Json] = (await self._http.get("/api/chats")).json()["chats"]
        return len(chats)
