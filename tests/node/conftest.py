import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from fcntl import LOCK_EX, flock
from hashlib import sha256
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
WEB = ROOT / "app/turnstream/web"
BINARIES = FOLDER / "node_modules/.bin"

Json = dict[str, Any]
SEA: Json = {
    "type": "object",
    "properties": {"sea": {"type": "string"}},
    "required": ["sea"],
    "additionalProperties": False,
}
Process = asyncio.subprocess.Process

# Each module has its own instance of a shared fixture, because the start of a server takes longer than a test.
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


@pytest.fixture(scope="session")
def node() -> str:
    """Installs the packages of this folder's package-lock.json, and returns Node."""
    _install(FOLDER)
    return path_of("Node")


@pytest.fixture(scope="session")
def copilotkit(node: str) -> Path:
    """A folder for CopilotKit. Its 350 packages are installed separately, because this takes a minute."""
    folder = FOLDER / "copilotkit"
    _install(folder)
    page = folder / ".page"
    page.mkdir(exist_ok=True)
    return page


@pytest.fixture(scope="session")
def claude_code() -> Path:
    """The script that starts Claude Code."""
    folder = FOLDER / "claude_code"
    _install(folder)
    return folder / "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"


@pytest.fixture(scope="session")
def codex() -> Path:
    """The script that starts Codex CLI."""
    folder = FOLDER / "codex"
    _install(folder)
    return folder / "node_modules/@openai/codex/bin/codex.js"


@pytest.fixture(scope="session")
def workflow(node: str) -> Path:
    """The AI SDK's workflow transport, installed separately: it needs another version of the SDK."""
    folder = FOLDER / "workflow"
    _install(folder)
    return folder


@pytest.fixture(scope="session")
def oidc(node: str) -> Path:
    """A certified OpenID provider."""
    folder = FOLDER / "oidc"
    _install(folder)
    return folder


@pytest.fixture(scope="session")
def mcp_conformance(node: str) -> Path:
    """The official conformance suite of MCP."""
    folder = FOLDER / "mcp_conformance"
    _install(folder)
    return folder


@pytest.fixture(scope="session")
def tanstack(node: str) -> Path:
    folder = FOLDER / "tanstack"
    _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Installs the packages once for each state of the lock file, even if several test processes need them."""
    wanted = (folder / "package-lock.json").read_text(encoding="utf-8")
    with _once(folder / "node_modules/.installed", wanted) as todo:
        if todo:
            run(folder, path_of("npm"), "ci", "--loglevel=error", timeout=300)


@pytest.fixture(scope="session")
def packages(node: str) -> Path:
    """A folder with this repository's packages, which npm has packed and installed. Peer dependencies are in its parent
    folder.
    """
    npm, folder = path_of("npm"), FOLDER / ".packages"
    sources = [
        *WEB.glob("static/*.ts"),
        WEB / "static/turnstream.js",
        WEB / "static/README.md",
        *WEB.glob("*/package.json"),
        *WEB.glob("packages/*/*"),
    ]
    digest = sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    with _once(folder / "installed", digest) as todo:
        if todo:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
            run(ROOT, npm, "pack", "--workspaces", "--pack-destination", folder)
            packed = sorted(folder.glob("*.tgz"))
            run(folder, npm, "install", "--offline", "--legacy-peer-deps", "--no-package-lock", *packed)
    return folder


@contextmanager
def _once(stamp: Path, wanted: str) -> Iterator[bool]:
    """Yields whether this process must create the state `wanted`. If another process creates it, waits for that
    process.
    """
    with (FOLDER / ".install.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        todo = not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted
        yield todo
        if todo:
            stamp.write_text(wanted, encoding="utf-8")


def run(folder: Path, *command: str | Path, timeout: float = 150) -> str:
    """Returns the command's output. Fails the test if the command fails. `timeout` is in seconds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


class ScriptServer(Server):
    command = (sys.executable, "-m", "tests.node.server")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@shared
async def server(shared_database_url: str, folder: Path) -> AsyncIterator[ScriptServer]:
    async with _closing(shared_database_url, folder) as server:
        await server.start()
        yield server


@shared
async def replica(shared_database_url: str, folder: Path) -> AsyncIterator[ScriptServer]:
    """Another server on the same database, which a test starts when needed."""
    async with _closing(shared_database_url, folder) as replica:
        yield replica


@asynccontextmanager
async def _closing(database_url: str, folder: Path) -> AsyncIterator[ScriptServer]:
    settings = {"PYTHONPATH": str(ROOT), "TURNSTREAM_JOURNAL_INTERVAL": "0.01", HUNG: str(folder)}
    server = ScriptServer(database_url, folder, settings)
    yield server
    await server.close()


class Page:
    """A page that runs in Node."""

    def __init__(self, process: Process, server: Server) -> None:
        self._process = process
        self._server = server
        self._id = f"page {uuid4()}"
        self.state: Json = {}

    async def __call__(self, command: str, **options: Any) -> Json:
        """Sends a command. Returns the state of the page after the command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, await self._complaint()
        self.state = json.loads(line)
        assert self.state.get("failed") is None, self.state["failed"]
        return self.state

    async def open(
        self, messages: Any = None, *, resume: bool = False, documented: bool = False, packages: Path | None = None
    ) -> Json:
        """Opens the page. With `documented` it uses the functions of docs/ai-sdk.md, with stop and reconnect.
        `packages` is a folder whose installed transport the page uses.
        """
        about = {"url": self._server.url, "id": self._id, "resume": resume, "documented": documented}
        about["packages"] = packages and str(packages)
        return await self("open", **about, messages=messages or [])

    def move(self, server: Server) -> None:
        """Makes the next `open` use another server."""
        self._server = server

    async def stored(self) -> list[Json]:
        """Returns the stored messages of the chat."""
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False) as client:
            answer = await client.get(f"/api/ai-sdk/chat/{self._id}")
            assert answer.status_code == 200, answer.text
            messages: list[Json] = answer.json()["messages"]
            return messages

    async def until_stored(self, status: str) -> None:
        """Waits for the end of the newest answer, and checks its status."""
        async with httpx2.AsyncClient(base_url=self._server.url, trust_env=False, timeout=150) as client:
            chat = (await client.get(f"/api/ai-sdk/chat/{self._id}")).json()["id"]
            turns = (await client.get(f"/api/chats/{chat}/turns")).json()["turns"]
            url = f"/api/chats/{chat}/turns/{turns[-1]['id']}"
            await client.get(f"{url}/stream")  # waits for the end of the turn
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
