"""The released Claude Code against the real server."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.conftest import api, document, new_owner, server
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.pictures import PIXEL
from turnstream.domain.errors import PermanentError
from turnstream.scripted import message_of, text, thinking, tool_use

__all__ = ("api", "document", "new_owner", "server")

pytestmark = [pytest.mark.extensions("anthropic_api"), pytest.mark.asyncio(loop_scope="session")]


async def ask(
    node: str, claude: Path, home: Path, server: Server, token: str, model: str, *more: str, status: int = 0
) -> dict[str, Any]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": token,
        "ANTHROPIC_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }
    command = [node, str(claude), "-p", *more, "--allowedTools", "Bash", "--output-format", "json"]
    pipe, no_input = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment, stdin=no_input, stdout=pipe, stderr=pipe
    )
    said, complaint = await process.communicate()
    assert process.returncode == status, said + complaint
    answer: dict[str, Any] = json.loads(said)
    return answer


async def test_claude_code_runs_its_tools_and_resumes_its_session(
    node: str, claude_code: Path, tmp_path: Path, server: Server, api: Client
) -> None:
    call = {"command": "echo ship-$((40 + 2))", "description": "Echo"}
    model, provider = server.scripts.provider(
        *(
            message_of(thinking("Hm.", signature=f"s{number}"), tool_use("Bash", call, f"toolu_{number}"))
            for number in range(7)
        ),
        message_of(text("It is ", "42.")),
        message_of(text("Again.")),
    )
    token = await server.token(api.owner)
    first = await ask(node, claude_code, tmp_path, server, token, model, "Which ship?")
    assert (first["result"], first["is_error"]) == ("It is 42.", False)
    results = [block for block in provider.requests[7].messages[-1].blocks if block.type == "tool_result"]
    assert [block.text for block in results] == ["ship-42"]
    second = await ask(node, claude_code, tmp_path, server, token, model, "And now?", "--resume", first["session_id"])
    assert second["result"] == "Again."
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    turns = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    thoughts = [
        block for message in provider.requests[-1].messages for block in message.blocks if block.type == "thinking"
    ]
    assert [json.loads(block.data or "")["signature"] for block in thoughts] == [f"s{number}" for number in range(7)]


async def test_claude_code_reads_an_image_and_shows_the_error_of_a_turn(
    node: str, claude_code: Path, tmp_path: Path, server: Server, api: Client
) -> None:
    (tmp_path / "sea.png").write_bytes(PIXEL)
    model, provider = server.scripts.provider(
        message_of(tool_use("Read", {"file_path": str(tmp_path / "sea.png")}, "toolu_1")),
        message_of(text("It is a sea.")),
        *([PermanentError("invalid_request_error", "The sea is closed.")] for _ in range(5)),  # Claude Code retries
    )
    token = await server.token(api.owner)
    assert (await ask(node, claude_code, tmp_path, server, token, model, "What is it?"))["result"] == "It is a sea."
    results = provider.requests[1].messages[-1].blocks
    assert [block.type for block in results if block.type == "tool_result"] == ["tool_result"]
    assert "image" in repr(results)
    failed = await ask(node, claude_code, tmp_path, server, token, model, "And now?", status=1)
    assert failed["is_error"]
    assert "The sea is closed." in failed["result"]
