"""Runs turnstream beside a Django project. The project's sessions identify the users of the chat.

pip install turnstream django uvicorn
SESSION_SECRET=… uvicorn host:host
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from django.conf import settings
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from turnstream import Identity, create_app, lifespan, read_settings

# A real project has these values in its settings.py. If it stores sessions in the database, import the `SessionStore`
# of that engine, and call its `aget`.
settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ["SESSION_SECRET"],
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)


async def home(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("The page of the host.")


async def login(request: HttpRequest) -> HttpResponse:
    request.session["user"] = request.GET["user"]  # a real project checks a password, and calls `alogin`
    return HttpResponse()


urlpatterns = [path("", home), path("login", login)]
project = get_asgi_application()


async def by_session(request: Request) -> Identity | None:
    user = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME)).get("user")
    return Identity(user) if user else None


chat = create_app(read_settings(), authenticate=by_session)


@asynccontextmanager
async def run(_host: Starlette) -> AsyncIterator[None]:
    async with lifespan(chat):
        yield


host = Starlette(routes=[Mount("/chat", chat), Mount("/", project)], lifespan=run)
