"""Turns that call agents, and how tests post and read them."""

import asyncio
from typing import Any

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import tool_use


def call(name: str, id: str, task: str = "Say it.") -> Any:
    return tool_use(name, {"task": task}, id)


def post(model: str) -> dict[str, Any]:
    return {"blocks": [{"type": "text", "text": "Research it."}], "model": model}


async def turn_of(api: Client, exchange: dict[str, Any]) -> dict[str, Any]:
    answer = exchange["assistant_turn"]
    return dict(await api.json("GET", f"/api/chats/{answer['chat_id']}/turns/{answer['id']}"))


async def job_of(api: Client, exchange: dict[str, Any]) -> dict[str, Any]:
    """Returns the first job of the turn, once the job has a child."""
    while not (jobs := [job for job in (await turn_of(api, exchange))["jobs"] if job["child"]]):  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)
    return dict(jobs[0])


async def ended(api: Client, exchange: dict[str, Any]) -> dict[str, Any]:
    await api.events(exchange["stream_url"])
    return await turn_of(api, exchange)


def results(turn: dict[str, Any]) -> dict[str, str]:
    return {block["tool_use_id"]: block["text"] for block in turn["blocks"] if block["type"] == "tool_result"}


def script(server: Server, *replies: Any) -> Any:
    return server.scripts.provider(*replies)
