"""Bearer tokens in Postgres, which are looked up in batches and cached for some seconds."""

import asyncio
import time
from collections.abc import Mapping

from starlette.requests import Request

from turnstream.api.identity.authenticator import BELIEVED, bearer_token
from turnstream.domain.errors import OfAnotherCell, Unauthorized
from turnstream.domain.identity import Identity
from turnstream.storage.database import OF_REQUEST
from turnstream.storage.owners.tokens import Tokens, cell_of, is_well_formed

# Seconds between two writes of the times at which tokens were used.
_USES_PAUSE = 60.0
_MOST_REMEMBERED = 10_000


class StoredTokens:
    """Authenticates tokens. Only one query runs at a time, for all tokens that have arrived meanwhile, so that invented
    tokens occupy one connection. A server with a `cell` refuses an unknown token of another cell, and names that cell.
    """

    def __init__(self, tokens: Tokens, cell: str | None = None) -> None:
        self._tokens = tokens
        self._cell = cell
        self._known: dict[str, tuple[Identity | None, float]] = {}
        self._asked: set[str] = set()
        self._running: asyncio.Task[Mapping[str, Identity]] | None = None
        self._next: asyncio.Task[Mapping[str, Identity]] | None = None
        self._used: set[str] = set()

    async def identity_of(self, request: Request) -> Identity | None:
        token = bearer_token(request)
        return await self.of_token(token) if token is not None and is_well_formed(token) else None

    async def of_token(self, token: str) -> Identity:
        """Returns the identity of a token. Raises Unauthorized and OfAnotherCell."""
        identity, until = self._known.get(token, (None, 0.0))
        if time.monotonic() >= until and is_well_formed(token):
            identity = await self._look_up(token)
        if identity is None:
            cell = cell_of(token)
            if self._cell is not None and cell is not None and cell != self._cell:
                raise OfAnotherCell(cell, self._cell)
            raise Unauthorized("The token of the request is unknown here, revoked or expired; send another token.")
        if identity.credential is not None:
            self._used.add(identity.credential)
        return identity

    async def record_uses(self) -> None:
        """Records every minute which tokens were used, and never returns. Raises StorageError."""
        while True:
            await asyncio.sleep(_USES_PAUSE)
            used, self._used = self._used, set()
            if used:
                await self._tokens.record_uses(used)

    async def _look_up(self, token: str) -> Identity | None:
        self._asked.add(token)
        if self._next is None:
            self._next = asyncio.create_task(self._look_up_asked(self._running))
        found = await asyncio.shield(self._next)  # shielded, because other requests wait for the same query
        return found.get(token)

    async def _look_up_asked(self, before: asyncio.Task[Mapping[str, Identity]] | None) -> Mapping[str, Identity]:
        OF_REQUEST.set(False)  # the query serves many requests, with one connection at most
        if before is not None:
            await asyncio.wait({before})
        asked, self._asked = self._asked, set()
        self._running, self._next = self._next, None
        found = await self._tokens.identities(asked)
        if len(self._known) + len(asked) > _MOST_REMEMBERED:
            self._known.clear()
        # Unknown tokens are cached too, so that a repeated guess costs no query.
        until = time.monotonic() + BELIEVED
        self._known |= {token: (found.get(token), until) for token in asked}
        return found
