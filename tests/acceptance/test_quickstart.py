"""The commands of README.md and docs/quickstart.md, run verbatim against a server that these pages start."""

import re
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.support.http_client import Event, Parser
from tests.support.server_process import TURNSTREAM, Server, clean_environment
from turnstream_client.assembler import Assembler

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"
# The speed of reading, so that the test can cut a connection within an answer.
SLOWLY = "0.01"

needs_curl = pytest.mark.needs("curl")


def blocks_of(page: str) -> list[str]:
    """Returns the content of all ```sh blocks."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(page: str, server: Server, folder: Path) -> str:
    """Runs all blocks in one shell, except the first block, which starts a server. Returns their output."""
    start, *commands = blocks_of(page)
    assert start == "make run\n"
    script = "set -eu\n" + "\n".join(commands)
    assert ADDRESS in script
    shell = subprocess.run(
        ["bash", "-c", script.replace(ADDRESS, server.url)],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    return shell.stdout


def test_make_run_ends_in_the_server_that_these_tests_start() -> None:
    made = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert made.stdout.rstrip().endswith(f"{TURNSTREAM.parent.parent.name}/bin/turnstream serve")


@needs_curl
async def test_the_commands_of_the_readme_work_as_written(server: StartServer, tmp_path: Path) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY=SLOWLY)
    watched_a_turn(run("README.md", running, tmp_path))
    await came_back_to_what_was_missed(running, tmp_path)


@needs_curl
async def test_the_commands_of_the_quickstart_work_as_written(server: StartServer, tmp_path: Path) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY=SLOWLY)
    printed = run("docs/quickstart.md", running, tmp_path)
    watched_a_turn(printed)
    await came_back_to_what_was_missed(running, tmp_path)
    (last,) = re.findall(r"^the last thing I saw was (.+)$", printed, re.MULTILINE)
    assert f"\nid: {last}\n" in (tmp_path / "first.txt").read_text()
    assert f"\nid: {last}\n" not in (tmp_path / "rest.txt").read_text()
    assert "\n204\n" in printed
    assert "\nevent: turn_cancelled\n" in printed
    first_try, second_try = printed.splitlines()[-2:]
    assert first_try == second_try != ""


def watched_a_turn(printed: str) -> None:
    for event in ("turn_start", "round_start", "block_start", "block_delta", "block_stop", "turn_complete"):
        assert f"\nevent: {event}\n" in printed


async def came_back_to_what_was_missed(server: Server, folder: Path) -> None:
    first, rest = (Parser().feed((folder / name).read_bytes()) for name in ("first.txt", "rest.txt"))
    assert len(first) == 10
    await nothing_is_missing_and_nothing_comes_twice(server, first, rest)


async def nothing_is_missing_and_nothing_comes_twice(server: Server, first: list[Event], rest: list[Event]) -> None:
    ids = [tuple(map(int, event.id.split("-"))) for event in (*first, *rest) if event.id]
    assert ids == sorted(set(ids))
    start = first[0].data
    async with httpx2.AsyncClient(base_url=server.url) as client:
        turn = (await client.get(f"/api/chats/{start['chat']}/turns/{start['turn']}")).json()
    assembler = Assembler()
    for event in (*first, *rest):
        assembler.apply(event.name, event.data)
    assert (assembler.end, assembler.blocks) == ("turn_complete", turn["blocks"])


@pytest.mark.full
async def test_an_id_stays_valid_when_the_server_is_killed_and_started_again(server: StartServer) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY=SLOWLY)
    async with httpx2.AsyncClient(base_url=running.url, timeout=30) as client:
        body = {"blocks": [{"type": "text", "text": "How long does the battery last?"}]}
        stream = (await client.post("/api/turns", json=body)).json()["stream_url"]
        first: list[Event] = []
        async with client.stream("GET", stream) as response:
            parser = Parser()
            async for chunk in response.aiter_bytes():
                first += parser.feed(chunk)
                if len(first) >= 30:
                    break
        await running.kill()
        await running.start()
        rest = Parser().feed((await client.get(stream, headers={"Last-Event-ID": str(first[-1].id)})).content)
    await nothing_is_missing_and_nothing_comes_twice(running, first, rest)
