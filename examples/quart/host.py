"""Runs turnstream beside a Quart application. The application's sessions identify the users of the chat.

pip install turnstream quart uvicorn
SESSION_SECRET=… uvicorn host:host
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from itsdangerous import BadSignature
from quart import Quart, request, session
from quart.sessions import SecureCookieSessionInterface
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from turnstream import Identity, create_app, lifespan, read_settings

pages = Quart(__name__)
pages.secret_key = os.environ["SESSION_SECRET"]


@pages.get("/")
async def home() -> str:
    return "The page of the host."


@pages.post("/login")
async def login() -> str:
    session["user"] = request.args["user"]  # a real application checks a password first
    return ""


async def by_session(request: Request) -> Identity | None:
    signer = SecureCookieSessionInterface().get_signing_serializer(pages)
    try:
        return Identity(signer.loads(request.cookies.get("session", ""))["user"])
    except (BadSignature, KeyError):
        return None


chat = create_app(read_settings(), authenticate=by_session)


@asynccontextmanager
async def run(_host: Starlette) -> AsyncIterator[None]:
    async with lifespan(chat), pages.test_app():
        yield


host = Starlette(routes=[Mount("/chat", chat), Mount("/", pages)], lifespan=run)
