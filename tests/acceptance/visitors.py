"""People and programs that use `turnstream chat`, and what they can look up about it."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import httpx2

from tests.acceptance.pseudo_terminal import PseudoTerminal
from tests.support.server_process import TURNSTREAM, Server, clean_environment

Json = dict[str, Any]
_PATIENCE: Final = 60


class Script:
    """A client whose output is read by a program."""

    def __init__(self, server: str, folder: Path, *words: str, stdin: str = "", **settings: str) -> None:
        self.process = subprocess.Popen(
            [TURNSTREAM, "chat", *words],
            cwd=folder,
            env=clean_environment() | {"TURNSTREAM_URL": server, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stdin = stdin

    async def end(self) -> tuple[int, str, str]:
        """Its exit code, what it printed, and what it noted."""
        out, notes = await asyncio.to_thread(self.process.communicate, self._stdin, _PATIENCE)
        return self.process.returncode, out, notes


class Run(Protocol):
    def __call__(self, server: str, *words: str, stdin: str = "", **settings: str) -> Script: ...


class Sit(Protocol):
    def __call__(self, server: Server, *words: str, **settings: str) -> PseudoTerminal: ...


@contextmanager
def scripts(folder: Path) -> Iterator[Run]:
    started: list[Script] = []

    def start(server: str, *words: str, stdin: str = "", **settings: str) -> Script:
        started.append(Script(server, folder, *words, stdin=stdin, **settings))
        return started[-1]

    yield start
    for script in started:
        with script.process as process:
            process.kill()


@contextmanager
def terminals(folder: Path) -> Iterator[Sit]:
    """Without an editor, unless one is given."""
    started: list[PseudoTerminal] = []

    def start(server: Server, *words: str, **settings: str) -> PseudoTerminal:
        environment = clean_environment() | {"TURNSTREAM_URL": server.url, "VISUAL": "", "EDITOR": "", **settings}
        started.append(PseudoTerminal([TURNSTREAM, "chat", *words], environment, folder))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


class Look:
    """What the server itself says of the newest turn."""

    def __init__(self, server: Server) -> None:
        self._http = httpx2.AsyncClient(base_url=server.url)

    async def __aenter__(self) -> "Look":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def newest(self) -> Json | None:
        chats = (await self._http.get("/api/chats")).json()["chats"]
        if not chats:
            return None
        turns: list[Json] = (await self._http.get(f"/api/chats/{chats[0]['id']}/turns")).json()["turns"]
        return turns[-1]

    async def until(self, holds: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(_PATIENCE):
            while True:
                turn = await self.newest()
                if turn is not None and holds(turn):
                    return turn
                await asyncio.sleep(0.02)

    async def ask(self, question: str) -> None:
        answer = await self._http.post("/api/turns", json={"blocks": [{"type": "text", "text": question}]})
        assert answer.status_code == 201

    async def count(self) -> int:
        chats: list[Json] = (await self._http.get("/api/chats")).json()["chats"]
        return len(chats)
