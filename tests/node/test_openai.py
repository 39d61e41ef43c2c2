"""OpenAI's own package from npm, in Node, against the real server."""

import json
import signal
import subprocess
from typing import Any
from uuid import uuid4

import pytest

from tests.node.conftest import FOLDER, ScriptServer

_LEAST = 20  # the lowest version of Node that the package supports


@pytest.fixture(autouse=True)
def recent(node: str) -> None:
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _LEAST:
        pytest.skip(f"OpenAI's package needs Node {_LEAST}; this is {version.strip()}")


pytestmark = [pytest.mark.extensions("openai_api"), pytest.mark.asyncio(loop_scope="module")]


def play(node: str, server: ScriptServer, scene: str, *arguments: str) -> Any:
    command = [node, "openai.mjs", scene, server.url, *arguments]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_answers_are_returned_and_assembled_from_streams(node: str, server: ScriptServer) -> None:
    found = play(node, server, "answers")
    assert (found["text"], found["metadata"], found["grows"]) == ("That is it.", {"topic": "ships"}, True)
    assert found["streamed"] == [
        ["reasoning", None],
        ["message", "completed"],
        ["mcp_call", "completed"],
        ["mcp_call", "failed"],
        ["message", "completed"],
    ]
    assert found["models"] == ["script"]


async def test_functions_run_in_the_client_by_responses_and_by_chat_completions(
    node: str, server: ScriptServer
) -> None:
    assert play(node, server, "functions") == {"call": "getLocation", "text": "That is it.", "chat": "That is it."}


async def test_a_thread_is_imported_and_continues(node: str, server: ScriptServer) -> None:
    assert play(node, server, "conversations") == ["user", "assistant", "user", "assistant"]


async def test_outputs_have_the_types_of_their_schemas(node: str, server: ScriptServer) -> None:
    assert play(node, server, "structured") == [{"sea": "North"}, {"sea": "North"}]


async def test_files_are_uploaded_read_and_deleted(node: str, server: ScriptServer) -> None:
    assert play(node, server, "files") == {
        "name": "sea.txt",
        "text": "document  / text recall",
        "listed": True,
        "bytes": "Salt.",
        "deleted": True,
    }


async def test_errors_have_the_classes_of_the_package(node: str, server: ScriptServer) -> None:
    assert play(node, server, "errors") == [
        ["NotFoundError", "model"],
        ["BadRequestError", "top_logprobs"],
    ]


async def test_a_response_resumes_after_the_process_that_wrote_it_was_killed(node: str, server: ScriptServer) -> None:
    begun = play(node, server, "begin", f"hang once {uuid4()}")
    await server.restart(signal.SIGKILL)
    found = play(node, server, "resume", begun["id"], str(begun["last"]))
    assert found["whole"].endswith(found["text"])
    assert found["whole"].endswith("it.")
