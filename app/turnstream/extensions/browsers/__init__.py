"""Serves browsers: admits pages of other origins, and makes tokens for requests that cannot send headers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.extension import Context, Extension, Work
from turnstream.extensions.browsers.settings import NAME, BrowserSettings

if TYPE_CHECKING:
    from starlette.middleware import Middleware

    from turnstream.api.http.call_group import CallGroup
    from turnstream.api.identity.authenticator import Authenticate
    from turnstream.api.identity.stored import StoredTokens
    from turnstream.llm.models.catalog import Models


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.browsers.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    return Work(state=context.settings.section(BrowserSettings))


def _middleware(settings: Settings) -> "Sequence[Middleware]":
    from turnstream.extensions.browsers.origins import cross_origin

    return cross_origin(settings.section(BrowserSettings))


def _token_way(settings: Settings, stored: "StoredTokens") -> "Authenticate | None":
    given = settings.section(BrowserSettings)
    if not given.url_tokens and not given.token_cookie:
        return None
    from turnstream.extensions.browsers.origins import allowed_origins
    from turnstream.extensions.browsers.tokens import TokensInBrowsers

    return TokensInBrowsers(stored, given.url_tokens, given.token_cookie, allowed_origins(given)).identity_of


async def _check(settings: Settings, _models: "Models", _ping: bool) -> str:
    from turnstream.extensions.browsers.origins import allowed_origins

    allowed_origins(settings.section(BrowserSettings))
    return "are origins, or none is named"


EXTENSION = Extension(
    NAME,
    "pages of other origins, and short-lived tokens, also in addresses and cookies",
    settings=BrowserSettings,
    checks={"origins": _check},
    calls=_calls,
    work=_work,
    token_way=_token_way,
    middleware=_middleware,
)
