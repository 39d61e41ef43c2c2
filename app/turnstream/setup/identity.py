"""The ways to authenticate that the settings and the program ask for."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from turnstream.api.identity.local import LocalMachine
from turnstream.api.identity.stored import StoredTokens
from turnstream.api.identity.way import Authenticate, LoginScopes
from turnstream.config import Settings, unguessable
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import Scope, checked_scopes
from turnstream.extension import Extension
from turnstream.storage.database import Database
from turnstream.storage.owners.tokens import Tokens


@asynccontextmanager
async def open_ways(
    settings: Settings,
    database: Database,
    tokens: Tokens,
    stored: StoredTokens,
    authenticate: Authenticate | None,
    extensions: Sequence[Extension] = (),
) -> AsyncIterator[Sequence[Authenticate]]:
    """Raises ConfigError for settings that are wrong, and if others can reach a server that nobody may use."""
    scopes = login_scopes(settings)
    ways = [authenticate] if authenticate is not None else []
    async with AsyncExitStack() as stack:
        for extension in extensions:
            way = await stack.enter_async_context(extension.way(settings, scopes))
            ways += [way] if way is not None else []
        stored_ways = []
        for extension in extensions:
            way = await stack.enter_async_context(extension.stored_way(settings, scopes, database))
            stored_ways += [way] if way is not None else []
        only_tokens = not ways and not stored_ways
        ways.append(stored.identity_of)
        for extension in extensions:
            token_way = extension.token_way(settings, stored)
            ways += [token_way] if token_way is not None else []
        ways += stored_ways  # after tokens: a cookie comes with each request of a browser, whatever else it sends
        if only_tokens and settings.on_loopback:
            ways.append(LocalMachine(tokens).identity_of)
        elif only_tokens and not await tokens.exist():
            raise ConfigError(
                f"TURNSTREAM_HOST is {settings.host}, which other machines can reach, and there is no token yet: create"
                " one with `turnstream tokens create NAME`, or listen on 127.0.0.1."
            )
        yield ways


def metrics_token(settings: Settings) -> str | None:
    """The token that `GET /metrics` needs. Raises ConfigError for one that could be guessed."""
    return None if settings.metrics_token is None else unguessable("TURNSTREAM_METRICS_TOKEN", settings.metrics_token)


def login_scopes(settings: Settings) -> LoginScopes:
    """Raises ConfigError."""
    base = _scopes("TURNSTREAM_LOGIN_SCOPES", "" if settings.login_scopes == "none" else settings.login_scopes)
    by_role = {}
    for entry in (settings.login_roles or "").split(","):
        role, mark, scopes = entry.partition("=")
        if not entry.strip():
            continue
        if not mark or not role.strip():
            raise ConfigError("TURNSTREAM_LOGIN_ROLES must be such as `staff=read chat approve admin, guest=read`.")
        by_role[role.strip()] = _scopes("TURNSTREAM_LOGIN_ROLES", scopes)
    return LoginScopes(base, by_role)


def _scopes(setting: str, names: str) -> frozenset[Scope]:
    try:
        return frozenset(checked_scopes(_names(names)))
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.") from None


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()
