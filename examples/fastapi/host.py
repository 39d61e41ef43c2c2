"""Runs turnstream beside the routes of a FastAPI host, which provides the tools, hooks, users and metrics.

pip install turnstream fastapi uvicorn
uvicorn host:host
curl -b user=ada http://127.0.0.1:8000/chat/api/me
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.requests import Request

from turnstream import Hooks, Identity, Metrics, Toolset, TurnEnded, create_app, lifespan, read_settings, tool

registry = CollectorRegistry()
registry.register(Metrics())
answers = Counter("harbour_answers", "Answers by the user who asked", ["user"], registry=registry)


@tool(read_only=True)
async def high_water(port: str) -> str:
    """The time of high water in a port today."""
    return f"High water in {port} is at 14:07."


class Counting(Hooks):
    async def turn_ended(self, event: TurnEnded) -> None:
        answers.labels(event.owner).inc()


async def by_cookie(request: Request) -> Identity | None:
    user = request.cookies.get("user")
    return Identity(user) if user == "ada" else None


chat = create_app(read_settings(), toolset=Toolset([high_water]), hooks=[Counting()], authenticate=by_cookie)


@asynccontextmanager
async def run(_host: FastAPI) -> AsyncIterator[None]:
    async with lifespan(chat):
        yield


host = FastAPI(lifespan=run)
host.mount("/chat", chat)


@host.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(registry), media_type="text/plain")
