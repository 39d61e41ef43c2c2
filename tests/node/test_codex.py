"""The released Codex CLI against the real server. Any key is valid, because the server has no tokens."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import Server, serving
from tests.support.pictures import PIXEL
from turnstream.domain.errors import PermanentError
from turnstream.scripted import message_of, text, thinking, tool_use

pytestmark = [pytest.mark.extensions("openai_api"), pytest.mark.asyncio(loop_scope="session")]

CONFIG = """
model = "{model}"
model_provider = "turnstream"

[model_providers.turnstream]
name = "turnstream"
base_url = "{url}/v1"
env_key = "TURNSTREAM_TOKEN"
request_max_retries = 0
stream_max_retries = 0
"""


async def run(node: str, codex: Path, home: Path, server: Server, model: str, *words: str) -> Sequence[dict[str, Any]]:
    """Returns the completed items of `codex exec`."""
    events = await events_of(node, codex, home, server, model, *words)
    return [event["item"] for event in events if event["type"] == "item.completed"]


async def events_of(
    node: str, codex: Path, home: Path, server: Server, model: str, *words: str, status: int = 0
) -> Sequence[dict[str, Any]]:
    (home / "config.toml").write_text(CONFIG.format(model=model, url=server.url), encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home),
        "TURNSTREAM_TOKEN": "sk-1234",
    }
    command = [node, str(codex), "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", *words]
    pipe, no_input = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment, stdin=no_input, stdout=pipe, stderr=pipe
    )
    said, complaint = await process.communicate()
    assert process.returncode == status, said + complaint
    return [json.loads(line) for line in said.splitlines()]


async def test_codex_runs_its_tools_also_those_of_a_namespace_and_resumes_its_session(
    node: str, codex: Path, tmp_path: Path, database_url: str
) -> None:
    async with serving(database_url) as server:
        model, provider = server.scripts.provider(
            message_of(tool_use("exec_command", {"cmd": "echo ship-$((40 + 2))"}, "call_1")),
            message_of(tool_use("close_agent--in--multi_agent_v1", {"target": "none"}, "call_2")),
            message_of(text("It is ", "42.")),
            message_of(text("Again.")),
        )
        items = await run(node, codex, tmp_path, server, model, "Which ship?")
        assert "ship-42" in next(item for item in items if item["type"] == "command_execution")["aggregated_output"]
        assert items[-1]["text"] == "It is 42."
        items = await run(node, codex, tmp_path, server, model, "resume", "--last", "And now?")
        assert items[-1]["text"] == "Again."
    blocks = [block for message in provider.requests[-1].messages for block in message.blocks]
    assert [block.name for block in blocks if block.type == "tool_use"] == [
        "exec_command",
        "close_agent--in--multi_agent_v1",
    ]
    results = [block.text for block in blocks if block.type == "tool_result"]
    assert "ship-42" in results[0]
    assert "unsupported call" not in results[1]


async def test_codex_sends_images_and_shows_thoughts_and_errors(
    node: str, codex: Path, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "sea.png").write_bytes(PIXEL)
    async with serving(database_url) as server:
        model, provider = server.scripts.provider(
            message_of(thinking("A dot of water."), text("It is a sea.")),
            [PermanentError("invalid_request_error", "The sea is closed.")],
        )
        items = await run(node, codex, tmp_path, server, model, "What is it?", "-i", "sea.png")
        assert [item["type"] for item in items][-2:] == ["reasoning", "agent_message"]
        assert items[-2]["text"] == "A dot of water."
        events = await events_of(node, codex, tmp_path, server, model, "And now?", status=1)
        assert "The sea is closed." in json.dumps(events)
        assert events[-1]["type"] == "turn.failed"
    assert "image" in [block.type for message in provider.requests[0].messages for block in message.blocks]
