"""Authentication: the identity of a request, by the first of several ways that knows its credential."""

from collections.abc import Sequence

from starlette.requests import Request

from turnstream.api.identity.way import Authenticate, bearer_token
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.kit.clock import CLOCK


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
