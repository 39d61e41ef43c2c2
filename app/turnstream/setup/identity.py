"""The ways to authenticate that the settings and the embedding program select."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from turnstream.api.identity.authenticator import Authenticate
from turnstream.api.identity.local import LocalMachine
from turnstream.api.identity.stored import StoredTokens
from turnstream.config import Settings, unguessable
from turnstream.domain.errors import ConfigError
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
    """Raises ConfigError for wrong settings, and if other machines can reach the server but nobody can use it."""
    ways = [authenticate] if authenticate is not None else []
    async with AsyncExitStack() as stack:
        for extension in extensions:
            way = await stack.enter_async_context(extension.way(settings))
            ways += [way] if way is not None else []
        stored_ways = []
        for extension in extensions:
            way = await stack.enter_async_context(extension.stored_way(settings, database))
            stored_ways += [way] if way is not None else []
        only_tokens = not ways and not stored_ways
        ways.append(stored.identity_of)
        for extension in extensions:
            token_way = extension.token_way(settings, stored)
            ways += [token_way] if token_way is not None else []
        ways += stored_ways  # after tokens: a browser sends a cookie with each request, whatever else it sends
        if only_tokens and settings.on_loopback:
            ways.append(LocalMachine(tokens).identity_of)
        elif only_tokens and not await tokens.exist():
            raise ConfigError(
                f"TURNSTREAM_HOST is {settings.host}, which other machines can reach, and there is no token yet: create"
                " one with `turnstream tokens create NAME`, or listen on 127.0.0.1."
            )
        yield ways


def metrics_token(settings: Settings) -> str | None:
    """Returns the token that `GET /metrics` requires, if any. Raises ConfigError if the token is guessable."""
    return None if settings.metrics_token is None else unguessable("TURNSTREAM_METRICS_TOKEN", settings.metrics_token)
