"""TanStack AI, as npm has it, over the calls of AG-UI."""

import json
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.node.conftest import ScriptServer, run

pytestmark = [pytest.mark.extensions("ag_ui"), pytest.mark.asyncio(loop_scope="module")]


async def test_a_chat_with_tools_of_the_server(node: str, tanstack: Path, server: ScriptServer) -> None:
    thread = str(uuid4())
    said = json.loads(run(tanstack, node, "page.mjs", server.url, thread, "tools", "plain"))
    # A round is a message of its own.
    assert [role for role, _ in said] == ["user", "assistant", "assistant", "user", "assistant"]
    assert ["tool-call", "weather"] in said[1][1]
    assert [parts[-1] for _, parts in said[2::2]] == [["text", "That is it."]] * 2
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        stored = (await client.get(f"/api/ag-ui/threads/{thread}")).json()["messages"]
    assert [each["role"] for each in stored].count("user") == 2, "both are in one chat"
