import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from tests.node.server import HUNG
from tests.support.programs import path_of
from tests.support.server_process import Server

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

Json = dict[str, Any]
Process = asyncio.subprocess.Process

# For all tests of the module: servers take longer to start than a test to run.
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@pytest.fixture(scope="session")
def node() -> str:
    """Node, with the packages of package-lock.json beside this file."""
    _install(path_of("npm"))
    return path_of("Node")


def _install(npm: str) -> None:
    """Once for each state of the lock, however many processes of tests there are."""
    wanted = (FOLDER / "package-lock.json").read_text(encoding="utf-8")
    stamp = FOLDER / "node_modules" / ".installed"
    with (FOLDER / ".install.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return
        done = subprocess.run([npm, "ci", "--loglevel=error"], cwd=FOLDER, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"npm ci failed:\n{done.stdout}{done.stderr}", pytrace=False)
        stamp.write_text(wanted, encoding="utf-8")


class ScriptServer(Server):
    command = (sys.executable, "-m", "tests.node.server")


@shared
async def server(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptServer]:
    folder = tmp_path_factory.mktemp("node")
    settings = {"PYTHONPATH": str(ROOT), "TURNSTREAM_JOURNAL_INTERVAL": "0.01", HUNG: str(folder)}
    server = ScriptServer(shared_database_url, folder, settings)
    await server.start()
    yield server
    await server.close()


class Page:
    """A page in Node."""

    def __init__(self, process: Process, server: Server) -> None:
        self._process = process
        self._server = server
        self._id = f"page {uuid4()}"
        self.state: Json = {}

    async def __call__(self, command: str, **options: Any) -> Json:
        """The page after the command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, await self._complaint()
        self.state = json.loads(line)
        assert self.state.get("failed") is None, self.state["failed"]
        return self.state

    async def open(self, messages: Any = None, *, resume: bool = False, documented: bool = False) -> Json:
        """`documented`: with the functions of docs/ai-sdk.md, which stop and come back."""
        about = {"url": self._server.url, "id": self._id, "resume": resume, "documented": documented}
        return await self("open", **about, messages=messages or [])

    async def stored(self) -> list[Json]:
        """The messages of the chat as the database holds them."""
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False) as client:
            answer = await client.get(f"/api/ai-sdk/chat/{self._id}")
            assert answer.status_code == 200, answer.text
            messages: list[Json] = answer.json()["messages"]
            return messages

    async def until_stored(self, status: str) -> None:
        """Returns when the newest answer has the status."""
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False, timeout=60) as client:
            chat = (await client.get(f"/api/ai-sdk/chat/{self._id}")).json()["id"]
            turns = (await client.get(f"/api/chats/{chat}/turns")).json()["turns"]
            url = f"/api/chats/{chat}/turns/{turns[-1]['id']}"
            await client.get(f"{url}/stream")  # to its end
            assert (await client.get(url)).json()["status"] == status

    async def stop_server_side(self) -> None:
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False) as client:
            assert (await client.post(f"/api/ai-sdk/chat/{self._id}/stop")).status_code == 200

    async def assert_shows_what_is_stored(self) -> None:
        shown, stored = self.state["messages"], await self.stored()
        assert [message["role"] for message in shown] == [message["role"] for message in stored]
        for here, there in zip(shown, stored, strict=True):
            assert here["parts"] == there["parts"]
            if here["role"] == "assistant":
                assert here["id"] == there["id"]
                assert here["metadata"] == there["metadata"]

    async def _complaint(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode()


@asynccontextmanager
async def process_of(node: str, script: str) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        node, script, cwd=FOLDER, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 24
    )
    yield process
    process.kill()
    await process.wait()


@shared
async def node_process(node: str) -> AsyncIterator[Process]:
    async with process_of(node, "page.mjs") as process:
        yield process


@pytest.fixture
def page(node_process: Process, server: ScriptServer) -> Page:
    return Page(node_process, server)
