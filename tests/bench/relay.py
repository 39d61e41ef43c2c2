"""The usual hand-written backend: the SDK's stream relayed as SSE, without storage and without resumption."""

import os
from collections.abc import AsyncIterator

from anthropic import AsyncAnthropic
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

client = AsyncAnthropic(base_url=os.environ["ANTHROPIC_BASE_URL"], api_key="bench", max_retries=0)


async def events(message: str) -> AsyncIterator[dict[str, str]]:
    stream = await client.messages.create(
        model="claude-sonnet-4-6",
        max_tokens=1024,
        messages=[{"role": "user", "content": message}],
        stream=True,
    )
    async for event in stream:
        yield {"event": event.type, "data": event.model_dump_json()}


async def chat(request: Request) -> EventSourceResponse:
    body = await request.json()
    return EventSourceResponse(events(body["message"]))


async def healthz(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/chat", chat, methods=["POST"]), Route("/healthz", healthz)])
