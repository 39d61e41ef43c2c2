"""Authentication: the identity of a request, by the first of several ways that knows its credential."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from starlette.requests import Request

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.kit.clock import CLOCK

# The parameter for a token in an address (RFC 6750, 2.3). Such a token is cut out of the query, and kept in the state
# of the request under this name.
URL_PARAMETER: Final = "access_token"
# Seconds during which a checked token, or the absence of tokens, is valid without a query.
BELIEVED = 5.0

# Returns None for a request without a credential of this kind. Raises Unauthorized for an invalid credential.
Authenticate = Callable[[Request], Awaitable[Identity | None]]
# Raises RequestRefused or Unavailable for a call of the identity that it refuses; true: the call may change something.
Admit = Callable[[Identity, bool], None]
# The identity of a call that names a chat: the caller, or for a member of the chat its owner, bound to the chat. Raises
# Forbidden for a call that the member may not make.
FindMember = Callable[[Identity, str, UUID], Awaitable[Identity]]
# The value that a client without a token sends, if its library requires a token.
_NO_TOKEN = frozenset({"", "none"})


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return None if scheme.lower() != "bearer" or token.strip() in _NO_TOKEN else token.strip()


class Authenticator:
    """Authenticates requests by `ways`, in their order."""

    def __init__(self, ways: Sequence[Authenticate]) -> None:
        self._ways = ways

    async def identity_of(self, request: Request) -> Identity:
        """Raises Unauthorized."""
        for way in self._ways:
            identity = await way(request)
            if identity is not None:
                if identity.has_expired(CLOCK.now()):
                    raise Unauthorized("The credential of the request has expired; send a new credential.")
                return identity
        if bearer_token(request) is None:
            raise Unauthorized("Send `Authorization: Bearer TOKEN`; `turnstream tokens create NAME` creates a token.")
        raise Unauthorized("The token of `Authorization` is unknown here or revoked; send another token.")
