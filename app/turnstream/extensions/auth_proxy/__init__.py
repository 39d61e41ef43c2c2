"""Accepts requests from a proxy that runs in front of the server and logs people in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from turnstream.config import Settings, unguessable
from turnstream.extension import Extension
from turnstream.libraries.logins import LoginSection

if TYPE_CHECKING:
    from turnstream.api.identity.authenticator import Authenticate


class AuthProxySettings(LoginSection):
    owner_prefix = "proxy"

    proxy_secret: SecretStr | None = Field(None, description="secret of a trusted proxy, in X-Turnstream-Proxy-Secret")
    proxy_owner_header: str = Field("X-Turnstream-Owner", description="header with the owner")
    proxy_roles_header: str | None = Field(None, description="header with roles")
    proxy_plan_header: str | None = Field(None, description="header with the plan")


@asynccontextmanager
async def _way(settings: Settings) -> AsyncIterator["Authenticate | None"]:
    given = settings.section(AuthProxySettings)
    if given.proxy_secret is None:
        yield None
        return
    from turnstream.extensions.auth_proxy.proxy import TrustedProxy

    headers = given.proxy_owner_header, given.proxy_roles_header, given.proxy_plan_header
    secret = unguessable("TURNSTREAM_PROXY_SECRET", given.proxy_secret)
    yield TrustedProxy(secret, given.scopes(), *headers, given.prefix).identity_of


# Authenticators run in the order of these names, so the proxy is asked before an issuer of tokens.
EXTENSION = Extension("auth_proxy", "a proxy that logs people in", settings=AuthProxySettings, way=_way)
