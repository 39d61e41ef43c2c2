"""The process as its operator sees it: its log and its exit."""

import asyncio
import json
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.acceptance.conftest import StartServer
from tests.support.http_client import Client, said
from tests.support.server_process import Server

# `turnstream serve` with a background task that fails if its folder contains a file `fail`.
FAILING = """
import pathlib
from turnstream.cli.serve import serve
from turnstream.engine.upkeep.journal_writer import JournalWriter

tick = JournalWriter.tick

async def fail(self):
    if pathlib.Path("fail").exists():
        raise {error}
    return await tick(self)

JournalWriter.tick = fail
serve()
"""


async def test_every_log_line_is_json_and_sigterm_exits_with_0(
    server: StartServer,
) -> None:
    running = await server()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"GARBAGE\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()
    assert await running.terminate() == 0
    lines = [json.loads(line) for line in running.logs.splitlines() if line.startswith(("{", "WARN", "ERR", "INFO"))]
    of_the_machine = "loop.held"  # a busy machine delays the server
    *events, warning = (line for line in lines if line["event"] != of_the_machine)
    assert {line["event"] for line in events} == {"model.demo", "secrets.plain"}
    assert warning["event"] == "library.warning"
    assert warning["logger"] == "uvicorn.error"


@pytest.mark.parametrize("error", ["KeyError('a bug')", "MemoryError()"])
async def test_a_server_that_failed_hands_its_turns_back_and_exits_with_1(
    database_url: str, tmp_path: Path, error: str
) -> None:
    class Failing(Server):
        command = (sys.executable, "-c", FAILING.format(error=error))

    running = Failing(database_url, tmp_path, {"TURNSTREAM_DEMO_DELAY": "600"})
    await running.start()
    try:
        async with Client(running.url) as client:
            await client.json("POST", "/api/turns", 201, json=said("Take your time."))
        connection = await asyncpg.connect(database_url)
        while not await connection.fetchval("SELECT count(*) FROM rounds"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        (tmp_path / "fail").touch()
        assert await running.ended() == 1
        turn = await connection.fetchrow("SELECT status, recoveries FROM turns WHERE role = 'assistant'")
        assert turn is not None
        assert tuple(turn) == ("queued", 0), "another replica goes on at once, and nothing is charged"
        await connection.close()
    finally:
        await running.close()
    assert running.logs.count("background.failed") == 1
