"""Starts a service behind an HTTP tool (docs/http-tools.md), and calls the tool that `tools.toml` declares."""

import asyncio
import json
import time
from pathlib import Path
from uuid import uuid4

from aiohttp import web

from turnstream import ToolContext, ToolSettings, open_toolset, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the value of the setting TURNSTREAM_SIGNING_SECRET


async def weather(request: web.Request) -> web.Response:
    body = await request.read()
    if not verify(SECRET, request.headers, body, now=time.time()):
        return web.Response(status=401, text="This was not sent by our chat server.")
    call = json.loads(body)
    if call["input"]["city"] == "Atlantis":
        return web.json_response({"text": "Nobody knows where Atlantis is.", "is_error": True})
    return web.json_response({"output": {"city": call["input"]["city"], "sky": "blue"}})


async def main() -> None:
    service = web.Application()
    service.router.add_post("/weather", weather)
    runner = web.AppRunner(service)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    environment = {"WEATHER_PORT": str(runner.addresses[0][1]), "WEATHER_TOKEN": "tok-123456"}
    wanted = ToolSettings(file=Path("tools.toml"), signing_secret=SECRET, environment=environment)
    context = ToolContext("ada", uuid4(), uuid4(), "toolu_1", "key-1", progress=lambda words: None)
    async with open_toolset([], wanted) as toolset:
        for sent in ['{"city": "Oslo"}', '{"city": "Atlantis"}', '{"town": "Oslo"}']:
            outcome = await toolset.run("weather", sent, context)
            print(f"{outcome.kind}: {outcome.text}")
    await runner.cleanup()


asyncio.run(main())
