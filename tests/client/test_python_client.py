"""The client in Python: its separate installation, the examples of its page, and its two interfaces against a
server.
"""

import asyncio
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.http_server import Server, serving
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text, thinking
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset
from turnstream_client import (
    Assembler,
    AsyncClient,
    BlockEnded,
    BlockStarted,
    Client,
    ClientClosed,
    ClientError,
    RequestRejected,
    RoundEnded,
    ServerEvent,
    TextAdded,
    TurnDone,
    TurnStarted,
)
from turnstream_client.events import event_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "app/turnstream_client/README.md").read_text(encoding="utf-8")
QUESTION = "/say The tide 🌊 comes in."

pytestmark = pytest.mark.timeout(300)


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    offers = [ProviderModels(DemoProvider(0), ["demo"])]
    async with serving(database_url, Toolset([pay]), offers=offers, model="demo") as server:
        yield server


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and its dependencies, but not the source tree."""
    folder = tmp_path_factory.mktemp("client")
    _run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT / "app/turnstream_client"
    )
    (wheel,) = folder.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv/bin/python"
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # Python ignores the .pth files there
    return python


async def _output(python: Path, program: str, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        python, "-c", program, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


def _examples(page: str = PAGE) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.full
async def test_the_client_installed_alone_talks_to_a_server_as_the_page_says(
    installed: Path, server: Server, tmp_path: Path
) -> None:
    first, resumed, allow_all = (example.replace("http://127.0.0.1:8000", server.url) for example in _examples())
    printed = await _output(installed, first.replace("How long does the battery last?", QUESTION), tmp_path)
    assert re.fullmatch(r"The tide 🌊 comes in\.\ncomplete, \d+ tokens\n", printed)
    failed = await _output(installed, first.replace("How long does the battery last?", "/fail bad_request"), tmp_path)
    assert re.fullmatch(r"\n.+\n", failed)
    assert "tokens" not in failed
    goes_on = f"""
import asyncio
{resumed}

async def main() -> None:
    async with AsyncClient({server.url!r}) as client:
        turn = (await client.post_turn(None, {QUESTION!r}))["assistant_turn"]
        state, cursor = Assembler(), None
        async for event in client.follow(turn["chat_id"], turn["id"]):
            state.apply(event.name, event.data)
            cursor = event.cursor or cursor
            if event.name == "block_delta":
                break
        cursor = await resumed(client, turn["chat_id"], turn["id"], cursor, state)
        stored = await client.turn(turn["chat_id"], turn["id"])
        print(state.blocks == stored["blocks"], cursor == stored["cursor"])

asyncio.run(main())
try:
    import turnstream.api
except ModuleNotFoundError:
    print("without a server")
"""
    assert await _output(installed, goes_on, tmp_path) == "True True\nwithout a server\n"
    approves = f"""
{allow_all}
with Client({server.url!r}) as client:
    turn = client.post_turn(None, "/call pay {{}}")["assistant_turn"]
    allow_all(client, turn["chat_id"], turn["id"])
    blocks = client.turn(turn["chat_id"], turn["id"])["blocks"]
    print([block["text"] for block in blocks if block["type"] == "tool_result"])
"""
    assert await _output(installed, approves, tmp_path) == "['paid']\n"


async def test_a_program_without_an_event_loop_has_the_same_calls(server: Server) -> None:
    def program() -> None:
        with Client(server.url) as client:
            upload = client.upload(b"Low tide at ten.")
            document = {"type": "document", "source": {"type": "upload", "id": upload["id"]}}
            blocks = [{"type": "text", "text": QUESTION}, document]
            turn = client.post_turn(None, "", options={"blocks": blocks})["assistant_turn"]
            ids = turn["chat_id"], turn["id"]
            state = client.answer(*ids)
            assert (state.end, state.blocks) == ("turn_complete", client.turn(*ids)["blocks"])
            again = client.regenerate(*ids)["assistant_turn"]
            events = list(client.follow(again["chat_id"], again["id"]))
            assert isinstance(events[-1], TurnDone)
            assert next(iter(client.follow_chat(ids[0]))).name == "connected"
            copy = client.fork(ids[0])["assistant_turn"]
            assert {chat["id"] for chat in client.chats(10)} == {ids[0], copy["chat_id"]}
            assert len(client.path(ids[0], 10)["turns"]) == 2
            with pytest.raises(RequestRejected):
                client.cancel(ids[0], ids[0])

    await asyncio.to_thread(program)
    with pytest.raises(ClientError):
        Client("http://127.0.0.1:port")


async def test_thoughts_are_blocks_of_the_answer(database_url: str) -> None:
    offers = [ProviderModels(ScriptedProvider([message_of(thinking("The moon ", "pulls."), text("Twice."))]), ["deep"])]
    async with (
        serving(database_url, Toolset([]), offers=offers, model="deep") as server,
        AsyncClient(server.url) as client,
    ):
        turn = (await client.post_turn(None, "How often?"))["assistant_turn"]
        state = await client.answer(turn["chat_id"], turn["id"])
    assert [(block["type"], block["text"]) for block in state.blocks] == [
        ("thinking", "The moon pulls."),
        ("text", "Twice."),
    ]


def test_a_client_that_is_closed_ends_the_streams_of_other_threads_and_refuses_calls() -> None:
    client, begun, seen = Client("http://127.0.0.1:9"), threading.Event(), []

    def read() -> None:
        for event in client.feed():
            seen.append(event.name)
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    unread = client.feed()
    next(unread)
    client.close()
    client.close()
    reader.join()
    assert set(seen) == {"disconnected"}
    assert list(unread) == []
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.models()


async def test_events_are_values_by_name(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        turn = (await client.post_turn(None, QUESTION))["assistant_turn"]
        async with aclosing(client.follow(turn["chat_id"], turn["id"]).events()) as stream:
            events = [event async for event in stream if event.cursor]
        stored = await client.turn(turn["chat_id"], turn["id"])
    kinds = [type(event) for event in events]
    assert (kinds[0], kinds[-3:]) == (TurnStarted, [BlockEnded, RoundEnded, TurnDone])
    assert BlockStarted in kinds
    assert "".join(event.text for event in events if isinstance(event, TextAdded)) == stored["blocks"][0]["text"]
    assert event_of("aurora", {"index": 1}) == ServerEvent("aurora", {"index": 1})
    assert type(event_of("reset", {})) is ServerEvent  # `reset` of the owner's feed has no members
    state = Assembler()
    for event in events:
        state.apply(event.name, event.data)
    assert state.blocks == stored["blocks"]
