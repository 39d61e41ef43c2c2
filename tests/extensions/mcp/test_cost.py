"""A turn without MCP runs the same statements whether the extension is installed or not, and imports no module of the
SDK.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.server_process import TURNSTREAM, Server
from turnstream.extension import installed
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

IMPORTS = """
import sys

from turnstream import tool


@tool
async def imported() -> list[str]:
    \"\"\"The modules that the server has imported.\"\"\"
    return sorted(name for name in sys.modules if "mcp" in name.split("."))


TOOLS = [imported]
"""
# The modules that may be imported: they have the extension's calls, the schemas of the calls, and the keys of its
# tables.
CALLS = {"", ".app_calls", ".calls", ".declared", ".failures", ".offer_calls", ".own_calls", ".tables"}


@tool
async def look() -> str:
    """Looks."""
    return "Seen."


async def statements_of_a_turn(database_url: str, monkeypatch: pytest.MonkeyPatch, *without: str) -> Counter[Statement]:
    """Returns the statements whose arguments name the turn, its chat or its owner."""
    made, arguments = list[tuple[Statement, set[str]]](), Statement.arguments

    def noted(statement: Statement, values: dict[str, Any]) -> list[Any]:
        made.append((statement, {str(value) for value in values.values()}))
        return arguments(statement, values)

    extensions = [each for name, each in installed().items() if name not in without]
    async with serving(database_url, Toolset([look]), extensions=extensions) as server:
        owner = f"owner without {without}"
        async with Client(server.url, None, await server.token(owner)) as client:
            model = server.scripts.model(message_of(tool_use("look", {}, "a")), message_of(text("Done.")))
            chat = await client.chat()
            monkeypatch.setattr(Statement, "arguments", noted)
            turn = (await client.ask(chat, model=model)).assistant
            monkeypatch.undo()
    assert turn["status"] == "complete"
    ids = {turn["id"], turn["chat_id"], turn["parent_id"], owner}
    return Counter(statement for statement, values in made if values & ids)


async def test_a_turn_without_mcp_makes_the_statements_that_it_makes_without_the_extension(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = await statements_of_a_turn(database_url, monkeypatch, "mcp")
    assert without.total() > 5
    assert await statements_of_a_turn(database_url, monkeypatch) == without


async def test_a_server_without_mcp_servers_imports_neither_the_sdk_nor_its_users(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "imports.py").write_text(IMPORTS, encoding="utf-8")

    class Unforked(Server):  # a process that is forked from the tests would already have imported the tests' modules
        command = (TURNSTREAM, "serve")

    server = Unforked(database_url, tmp_path, {"TURNSTREAM_TOOLSET": "imports:TOOLS", "PYTHONPATH": str(tmp_path)})
    await server.start()
    try:
        async with Client(server.url) as client:
            turn = (await client.ask(await client.chat(), "/call imported {}")).assistant
    finally:
        await server.close()
    (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert {name.removeprefix("turnstream.extensions.mcp") for name in json.loads(result["text"])} <= CALLS
