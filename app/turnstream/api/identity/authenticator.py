"""Authentication: the first of several ways that recognises the credential of a request determines its identity."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from starlette.requests import Request

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.kit.clock import CLOCK

# The query parameter for a token in a URL (RFC 6750, 2.3). The server removes such a token from the query, and keeps
# the token under this name in the state of the request.
URL_PARAMETER: Final = "access_token"
# Seconds for which a checked token, or the fact that no tokens exist, is valid without another query.
BELIEVED = 5.0

# Returns the identity, or None without a credential of this kind. Raises Unauthorized for an invalid credential.
Authenticate = Callable[[Request], Awaitable[Identity | None]]
# Raises RequestRefused or Unavailable to refuse a call of the identity. The flag is true if the call may change data.
Admit = Callable[[Identity, bool], None]
# Returns the identity with which a call to a chat runs, usually that of the caller. If the caller is a member of the
# chat, the call runs as the chat's owner, bound to the chat. Raises Forbidden for a call that the member may not make.
FindMember = Callable[[Identity, str, UUID], Awaitable[Identity]]
# The values that a client without a token sends because its library requires a token.
_NO_TOKEN = frozenset({"", "none"})


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return None if scheme.lower() != "bearer" or token.strip() in _NO_TOKEN else token.strip()


class Authenticator:
    """Authenticates a request by trying `ways` in their order."""

    def __init__(self, ways: Sequence[Authenticate]) -> None:
        self._ways = ways

    async def identity_of(self, request: Request) -> Identity:
        """Returns the identity of the request. Raises Unauthorized."""
        for way in self._ways:
            identity = await way(request)
            if identity is not None:
                if identity.has_expired(CLOCK.now()):
                    raise Unauthorized("The credential of the request has expired; send a new credential.")
                return identity
        if bearer_token(request) is None:
            raise Unauthorized("Send `Authorization: Bearer TOKEN`; `turnstream tokens create NAME` creates a token.")
        raise Unauthorized("The token of `Authorization` is unknown here or revoked; send another token.")
