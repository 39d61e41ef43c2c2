"""Anthropic's own package from npm, in Node, against the real server."""

import json
import signal
from typing import Any
from uuid import uuid4

import pytest

from tests.node.conftest import FOLDER, ScriptServer, run

pytestmark = [pytest.mark.extensions("anthropic_api"), pytest.mark.asyncio(loop_scope="module")]


def play(node: str, server: ScriptServer, scene: str, *arguments: str) -> Any:
    return json.loads(run(FOLDER, node, "anthropic.mjs", scene, server.url, *arguments))


async def test_messages_are_returned_and_assembled_from_streams(node: str, server: ScriptServer) -> None:
    found = play(node, server, "answers")
    assert (found["text"], found["models"], found["counts"]) == ("That is it.", ["script"], True)
    assert found["streamed"] == [["thinking", "Let me look."], ["text", "One moment."], ["text", "That is it."]]
    assert found["types"] == [
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_start",
        "message_stop",
    ]


async def test_tools_run_in_the_client(node: str, server: ScriptServer) -> None:
    found = play(node, server, "tools")
    assert found == {"call": ["getLocation", {"precise": True}], "stop": "tool_use", "text": "That is it."}


async def test_an_output_has_its_schema(node: str, server: ScriptServer) -> None:
    assert play(node, server, "structured") == {"sea": "North"}


async def test_a_document_reaches_the_model(node: str, server: ScriptServer) -> None:
    assert play(node, server, "files") == "document  / text recall"


async def test_errors_have_the_classes_of_the_package(node: str, server: ScriptServer) -> None:
    assert play(node, server, "errors") == [
        ["NotFoundError", "not_found_error"],
        ["BadRequestError", "invalid_request_error"],
        ["BadRequestError", "invalid_request_error"],
    ]


async def test_a_message_resumes_after_the_process_that_wrote_it_was_killed(node: str, server: ScriptServer) -> None:
    words = f"hang once {uuid4()}"
    name = play(node, server, "begin", words)
    await server.restart(signal.SIGKILL)
    assert play(node, server, "resume", words, name) == ["That is it."] * 2
