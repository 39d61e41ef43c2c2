"""Background tools behind the API: a job is in the turn, is no action, and no dialect takes its wait for an end."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream.llm.scripted import Pause, message_of, text, tool_use
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset


async def waiting_turn(api: Client) -> dict[str, Any]:
    while True:
        for chat in (await api.json("GET", "/api/chats"))["chats"]:
            turns = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]
            if turns and turns[-1]["status"] == "waiting":
                return dict(turns[-1])
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("dialect", ["completions", "responses"])
async def test_an_answer_ends_after_the_job_of_its_call(database_url: str, dialect: str) -> None:
    pause = Pause()

    @tool(background=True)
    async def dig(context: ToolContext) -> str:
        """Dig."""
        context.progress("half a hole")
        pause.reached.set()
        await pause.go.wait()
        return "a hole"

    async with (
        serving(database_url, Toolset([dig])) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
        Client(server.url) as api,
    ):
        model, _ = server.scripts.provider(message_of(tool_use("dig", {}, "a")), message_of(text("There.")))

        async def ask() -> str | None:
            if dialect == "responses":
                return (await client.responses.create(model=model, input="Dig!")).output_text
            messages: Any = [{"role": "user", "content": "Dig!"}]
            return (await client.chat.completions.create(model=model, messages=messages)).choices[0].message.content

        answer = asyncio.create_task(ask())
        await pause.reached.wait()
        turn = await waiting_turn(api)
        while turn["jobs"][0]["progress"] is None:
            turn = await waiting_turn(api)
        assert [(job["name"], job["tool_use_id"], job["progress"]) for job in turn["jobs"]] == [
            ("dig", "a", "half a hole")
        ]
        assert turn["actions"] == []
        assert (await api.json("GET", "/api/waiting"))["calls"] == []
        sentences = (await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}/why"))["reasons"]
        assert any(f"the job {turn['jobs'][0]['id']} of the tool dig" in sentence for sentence in sentences)
        assert not answer.done()
        pause.go.set()
        assert await answer == "There."
