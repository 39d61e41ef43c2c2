"""A way to authenticate: a function from a request to an identity."""

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from starlette.requests import Request

from turnstream.domain.identity import Identity

# The parameter for a token in an address (RFC 6750, 2.3). Such a token is cut out of the query, and kept in the state
# of the request under this name.
URL_PARAMETER: Final = "access_token"
# Seconds for which a checked token, or the absence of tokens, is trusted without a query.
BELIEVED = 5.0

# Returns None for a request without a credential of its kind. Raises Unauthorized for one that is not valid.
Authenticate = Callable[[Request], Awaitable[Identity | None]]
# Raises RequestRefused or Unavailable for a call of the identity that it refuses; true: the call may change something.
Admit = Callable[[Identity, bool], None]
# The identity for which a call that names a chat is made: the caller's, or for a member of the chat that of its owner,
# bound to the chat. Raises Forbidden for a call that the member may not make.
FindMember = Callable[[Identity, str, UUID], Awaitable[Identity]]


# The value of a client without a token, if its library demands one.
_NO_TOKEN = frozenset({"", "none"})


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return None if scheme.lower() != "bearer" or token.strip() in _NO_TOKEN else token.strip()
