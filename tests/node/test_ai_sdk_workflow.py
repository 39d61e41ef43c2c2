"""The AI SDK's workflow transport from npm. It resumes a stream by the number of chunks that it has received."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.node.conftest import SEA, Json, ScriptServer, run

pytestmark = [pytest.mark.extensions("ai_sdk"), pytest.mark.asyncio(loop_scope="module")]


def play(
    node: str, folder: Path, server: ScriptServer, chat: str, action: str, words: str = "", cuts: int = 0, **more: Any
) -> Json:
    command = [action, words, str(cuts), json.dumps(more)]
    told: Json = json.loads(run(folder, node, "page.mjs", server.url, chat, *command))
    return told


async def stored(server: ScriptServer, chat: str) -> Json:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        messages: list[Json] = (await client.get(f"/api/ai-sdk/chat/{chat}")).json()["messages"]
        return messages[-1]


def assert_shows(told: Json, there: Json) -> None:
    here = told["message"]
    assert here["parts"] == there["parts"]
    assert (here["id"], here["metadata"]) == (there["id"], there["metadata"])


@pytest.mark.parametrize("cuts", [0, 1, 9])
async def test_an_answer_whose_stream_is_cut_is_whole(
    node: str, workflow: Path, server: ScriptServer, cuts: int
) -> None:
    chat = str(uuid4())
    told = play(node, workflow, server, chat, "send", "long", cuts)
    assert_shows(told, await stored(server, chat))
    types = [part["type"] for part in told["message"]["parts"]]
    assert types == ["step-start", "reasoning", "text", "tool-weather", "step-start", "text"]
    assert len(told["requests"]) > min(cuts, 3)
    starts = [int(request.partition("startIndex=")[2]) for request in told["requests"][1:]]
    assert starts == sorted(starts)
    assert not cuts or starts[-1] > 0


async def test_the_end_of_a_stream_is_asked_for(node: str, workflow: Path, server: ScriptServer) -> None:
    chat = str(uuid4())
    play(node, workflow, server, chat, "send", "long")
    told = play(node, workflow, server, chat, "tail", cuts=3)
    assert_shows(told, await stored(server, chat))
    assert told["requests"][0] == "GET 200 ?startIndex=-4"
    assert "startIndex=-" not in told["requests"][1]


@pytest.mark.parametrize("cuts", [0, 1])
async def test_an_answer_that_waited_for_an_approval_is_continued_and_cut(
    node: str, workflow: Path, server: ScriptServer, cuts: int
) -> None:
    chat = str(uuid4())
    told = play(node, workflow, server, chat, "approve", "mail", cuts)
    there = await stored(server, chat)
    assert there["metadata"]["status"] == "complete"
    assert_shows(told, there)


async def test_a_tool_of_the_page_an_output_files_and_a_second_message(
    node: str, workflow: Path, server: ScriptServer
) -> None:
    chat = str(uuid4())
    told = play(node, workflow, server, chat, "send", "where", 1, tool="getLocation")
    call = next(part for part in told["message"]["parts"] if part["type"] == "tool-getLocation")
    assert (call["state"], call["output"]) == ("output-available", {"city": "Bern"})
    assert told["message"]["parts"][-1]["text"] == "That is it."
    assert_shows(told, await stored(server, chat))
    chat = str(uuid4())
    told = play(node, workflow, server, chat, "send", "structured", output={"schema": SEA})
    assert told["message"]["metadata"]["output"] == {"sea": "North"}
    chat, url = str(uuid4()), f"data:text/plain;base64,{b64encode(b'Salt.').decode()}"
    file = {"type": "file", "mediaType": "text/plain", "filename": "sea.txt", "url": url}
    told = play(node, workflow, server, chat, "send", "plain", files=[file], more=["recall"])
    said = "document  / text plain / text That is it. / text recall"
    assert told["message"]["parts"][-1]["text"] == said
    assert_shows(told, await stored(server, chat))


async def test_an_answer_that_fails_ends(node: str, workflow: Path, server: ScriptServer) -> None:
    chat = str(uuid4())
    with pytest.raises(pytest.fail.Exception, match="It cannot be done"):
        play(node, workflow, server, chat, "send", "fail", 1)
