"""A way to authenticate: a function from a request to an identity."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from app.domain.identity import Identity

# Seconds for which a checked token, or the absence of tokens, is trusted without a query.
BELIEVED = 5.0

# Returns None for a request without a credential of its kind. Raises Unauthorized for one that is not valid.
Authenticate = Callable[[Request], Awaitable[Identity | None]]


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
