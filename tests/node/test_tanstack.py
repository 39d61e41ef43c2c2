"""TanStack AI from npm, over AG-UI's endpoints."""

import json
from base64 import b64encode
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.node.conftest import Json, ScriptServer, run

pytestmark = [pytest.mark.extensions("ag_ui"), pytest.mark.asyncio(loop_scope="module")]


def play(node: str, folder: Path, server: ScriptServer, thread: str, *messages: str | Json) -> Json:
    sent = [json.dumps(each) for each in messages]
    found: Json = json.loads(run(folder, node, "page.mjs", server.url, thread, *sent))
    return found


async def test_a_chat_with_tools_of_the_server(node: str, tanstack: Path, server: ScriptServer) -> None:
    thread = str(uuid4())
    said = play(node, tanstack, server, thread, "tools", "plain")["said"]
    # Each round is a separate message.
    assert [role for role, _ in said] == ["user", "assistant", "assistant", "user", "assistant"]
    assert ["thinking", "Let me look."] in said[1][1]
    assert ["tool-call", "weather"] in said[1][1]
    assert [parts[-1] for _, parts in said[2::2]] == [["text", "That is it."]] * 2
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        stored = (await client.get(f"/api/ag-ui/threads/{thread}")).json()["messages"]
    assert [each["role"] for each in stored].count("user") == 2, "both are in one chat"


async def test_a_tool_of_the_page_files_and_the_error_of_a_turn(
    node: str, tanstack: Path, server: ScriptServer
) -> None:
    source = {"type": "data", "value": b64encode(b"Salt.").decode(), "mimeType": "text/plain"}
    content = [{"type": "document", "source": source}, {"type": "text", "content": "recall"}]
    called = play(node, tanstack, server, str(uuid4()), "where")
    assert ["tool-call", "getLocation"] in called["said"][1][1]
    assert called["said"][-1] == ["assistant", [["text", "That is it."]]]
    read = play(node, tanstack, server, str(uuid4()), {"content": content})
    assert read["said"][-1] == ["assistant", [["text", "document  / text recall"]]]
    failed = play(node, tanstack, server, str(uuid4()), "fail")
    assert (failed["status"], failed["error"]) == ("error", "It cannot be done.")
