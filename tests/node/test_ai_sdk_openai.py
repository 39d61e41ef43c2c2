"""The AI SDK's provider for OpenAI, in Node, against the real server. Its requests contain few ids or none."""

import json
import subprocess

import httpx2
import pytest

from tests.node.conftest import FOLDER, ScriptServer

pytestmark = [pytest.mark.extensions("openai_api"), pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("store", ["stored", "unstored"])
@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_loops_of_tools_and_messages_continue_in_one_chat(
    node: str, server: ScriptServer, kind: str, way: str, store: str
) -> None:
    before = await _chats(server)
    command = [node, "ai-openai.mjs", f"{kind} {way} {store}", server.url]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["That is it.", 2], ["That is it.", 1]] * 2
    assert await _chats(server) - before == (0 if store == "unstored" else 1)


async def _chats(server: ScriptServer) -> int:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        return len((await client.get("/api/chats")).json()["chats"])


@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_outputs_files_tools_of_the_server_and_errors_are_what_the_sdk_knows(
    node: str, server: ScriptServer, kind: str
) -> None:
    command = [node, "ai-openai.mjs", f"{kind} abilities", server.url]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Chat completions have no field that this package reads as thoughts.
    assert found.pop("reasoning", None) == ("Let me look." if kind == "responses" else None)
    assert "".join(found.pop("worked").split()) == "Onemoment.Thatisit."
    assert found == {
        "found": {"sea": "North"},
        "read": "document  / text recall",
        "failed": ["AI_APICallError", 400],
    }
