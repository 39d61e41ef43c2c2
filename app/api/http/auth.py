"""Authentication: the owner of a bearer token, or the one local owner while there is no token."""

import re
import time

from starlette.datastructures import Headers

from app.api.http.errors import Unauthorized
from app.storage.tokens import Tokens

LOCAL_OWNER = "local"

# Seconds for which a checked token, or the absence of tokens, is trusted without a query.
BELIEVED = 5.0
# A proxy on this machine makes everybody look like this machine; these headers give it away.
_FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "cf-connecting-ip",
)
_MOST_REMEMBERED = 10_000
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class Authenticator:
    """Authenticates requests. `on_loopback`: only this machine can reach the server. Elsewhere it is never open,
    not even after the last token was revoked, because the `Host` header is the caller's own claim.
    """

    def __init__(self, tokens: Tokens, *, on_loopback: bool) -> None:
        self._tokens = tokens
        self._on_loopback = on_loopback
        self._known: dict[str, tuple[str | None, float]] = {}
        self._open_until = 0.0

    async def owner_of(self, headers: Headers) -> str:
        """The owner that the headers authenticate. Raises Unauthorized."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return await self._owner_of_token(token.strip())
        if self._on_loopback and await self._is_open():
            return _local_owner(headers)
        raise Unauthorized("Send `Authorization: Bearer TOKEN`; `turnstream tokens create NAME` creates a token.")

    async def _owner_of_token(self, token: str) -> str:
        found, until = self._known.get(token, (None, 0.0))
        if time.monotonic() >= until:
            found = await self._tokens.owner_of(token)
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            # A token that is not known is remembered too, so that guessing costs no queries.
            self._known[token] = (found, time.monotonic() + BELIEVED)
        if found is None:
            raise Unauthorized("The token of `Authorization` is not known here, or was revoked; send another one.")
        return found

    async def _is_open(self) -> bool:
        if time.monotonic() < self._open_until:
            return True
        if await self._tokens.exist():
            return False
        self._open_until = time.monotonic() + BELIEVED
        return True


def _local_owner(headers: Headers) -> str:
    """Without tokens the server trusts this machine, but no request that a foreign web page makes a browser send."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if forwarded := next((name for name in _FORWARDED if name in headers), None):
        raise Unauthorized(f"The request came through a proxy ({forwarded}): create a token, and send it.")
    if len(headers.getlist("host")) > 1:
        raise Unauthorized("`Host` must be sent once.")
    if not _THIS_MACHINE.fullmatch(host):
        raise Unauthorized(f"`Host` must be localhost while the server has no tokens, not {host!r}.")
    if origin is not None and not _THIS_MACHINE.fullmatch(origin.partition("://")[2]):
        raise Unauthorized(f"`Origin` must be a page of localhost while the server has no tokens, not {origin!r}.")
    if origin is None and headers.get("sec-fetch-site") == "cross-site":
        raise Unauthorized("The request must come from a page of localhost while the server has no tokens.")
    return LOCAL_OWNER
