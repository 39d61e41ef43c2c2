"""The local owner: until the first token is created, the server accepts requests from this machine only."""

import asyncio
import re
import time
from functools import lru_cache
from ipaddress import ip_address

from starlette.requests import Request

from turnstream.api.identity.authenticator import BELIEVED
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import LOCAL_OWNER, SCOPES, Identity
from turnstream.storage.database import OF_REQUEST
from turnstream.storage.owners.tokens import Tokens

# Behind a proxy on this machine, every request seems to come from this machine. These headers reveal the proxy.
_FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "cf-connecting-ip",
)
_LOCAL = Identity(LOCAL_OWNER, frozenset(SCOPES))
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class LocalMachine:
    """Authenticates requests from this machine as the local owner, until the first token is created. From then on the
    server requires tokens, even after the last token is revoked. Simultaneous requests share one query.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._shut = False
        self._open_until = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def identity_of(self, request: Request) -> Identity | None:
        if not await self._is_open():
            return None
        _check_local(request)
        return _LOCAL

    async def _is_open(self) -> bool:
        if not self._shut and time.monotonic() >= self._open_until:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return not self._shut

    async def _ask(self) -> None:
        OF_REQUEST.set(False)  # the query serves many requests
        self._shut = await self._tokens.ever_existed()
        self._open_until = time.monotonic() + BELIEVED


def _check_local(request: Request) -> None:
    """Raises Unauthorized for a request from another machine, whatever its headers claim, and for a request that a
    browser sends on behalf of a foreign page. Every ASGI server passes the peer's address; `Host` is only a claim.
    """
    headers, peer = request.headers.items(), request.client.host if request.client else ""
    sent = dict(headers)
    host, origin = sent.get("host", ""), sent.get("origin")
    if forwarded := next((name for name in _FORWARDED if name in sent), None):
        raise Unauthorized(f"The request came through a proxy ({forwarded}): create a token, and send the token.")
    if not _is_loopback(peer):
        raise Unauthorized("The request came from another machine: create a token, and send the token.")
    if sum(name == "host" for name, _ in headers) > 1:
        raise Unauthorized("`Host` must be sent once.")
    wanted, remedy = "localhost while the server has no tokens", "create a token, and send it"
    if not _THIS_MACHINE.fullmatch(host):
        raise Unauthorized(f"`Host` must be {wanted}, not {host!r}; {remedy}.")
    if origin is not None and not _THIS_MACHINE.fullmatch(origin.partition("://")[2]):
        raise Unauthorized(f"`Origin` must be a page of {wanted}, not {origin!r}; {remedy}.")
    if origin is None and sent.get("sec-fetch-site") == "cross-site":
        raise Unauthorized(f"The request must come from a page of {wanted}; {remedy}.")


@lru_cache(maxsize=256)
def _is_loopback(address: str) -> bool:
    try:
        peer = ip_address(address)
    except ValueError:  # not an IP address: a proxy connects through a Unix socket
        return False
    mapped = getattr(peer, "ipv4_mapped", None)
    return (mapped or peer).is_loopback
