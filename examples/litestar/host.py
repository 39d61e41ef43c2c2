"""Runs turnstream beside a Litestar application. The application's sessions identify the users of the chat.

pip install turnstream litestar uvicorn
uvicorn host:host
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, get, post
from litestar.middleware.session.server_side import ServerSideSessionConfig
from starlette.applications import Starlette
from starlette.requests import Request as ChatRequest
from starlette.routing import Mount

from turnstream import Identity, create_app, lifespan, read_settings

sessions = ServerSideSessionConfig()


@get("/")
async def home() -> str:
    return "The page of the host."


@post("/login")
async def login(request: Request[Any, Any, Any], user: str) -> None:
    request.set_session({"user": user})  # a real application checks a password first


pages = Litestar([home, login], middleware=[sessions.middleware])


async def by_session(request: ChatRequest) -> Identity | None:
    stored = await pages.stores.get("sessions").get(request.cookies.get(sessions.key, ""))
    user = msgspec.json.decode(stored or b"{}").get("user")
    return Identity(user) if user else None


chat = create_app(read_settings(), authenticate=by_session)


@asynccontextmanager
async def run(_host: Starlette) -> AsyncIterator[None]:
    async with lifespan(chat), pages.lifespan():
        yield


host = Starlette(routes=[Mount("/chat", chat), Mount("/", pages)], lifespan=run)
