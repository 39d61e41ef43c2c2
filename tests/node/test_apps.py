"""Apps of MCP servers in other libraries: the AI SDK's renderer accepts their part, and AG-UI's client accepts their
activity.
"""

import asyncio
import json

import pytest

from tests.extensions.mcp.mcp_servers import APPS
from tests.extensions.mcp.test_offers import place_with
from tests.node.conftest import FOLDER
from turnstream.scripted import message_of, text, tool_use

pytestmark = [pytest.mark.extensions("mcp", "ai_sdk", "ag_ui"), pytest.mark.asyncio(loop_scope="session")]


async def test_an_app_is_passed_to_the_ai_sdk_and_to_ag_ui_by_their_conventions(node: str, database_url: str) -> None:
    async with place_with(database_url, None, APPS) as place:
        models = [
            place.server.scripts.model(
                message_of(tool_use("apps__chart", {"place": "Sund"}, "call_1")), message_of(text("See."))
            )
            for _ in range(2)
        ]
        command, pipe = (node, "apps.mjs", place.server.url, *models), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, cwd=FOLDER, stdout=pipe, stderr=pipe)
        output, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()
    found = json.loads(output)
    app = {"resourceUri": "ui://apps/chart", "mimeType": "text/html;profile=mcp-app", "server": "apps"}
    assert found["app"] == app
    assert found["part"]["output"]["structuredContent"] == {"result": [1, 3, 5, 2, 4]}
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool", "activity", "assistant"]
    assert found["messages"][1:] == found["stored"][1:], "but for the id that the client gave its own message"
    assert found["after"] == found["messages"], "a request of an app adds no message"
    assert "ui/initialize" in found["page"]["contents"][0]["text"]
    assert found["called"]["structuredContent"] == {"result": [7]}
