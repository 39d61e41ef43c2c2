"""A way to authenticate: a function from a request to an identity."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity, Scope, owner_name

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


def check_origin_of_cookie(request: Request, cookie: str, origins: Collection[str] = ()) -> None:
    """Raises Unauthorized for a request that a page of another origin may have made the browser send: neither of this
    server nor of `origins`.
    """
    origin = request.headers.get("origin")
    own = request.headers.get("sec-fetch-site") == "same-origin"
    if not own and origin not in origins and (origin is not None or request.method not in {"GET", "HEAD"}):
        others = f", and of {', '.join(sorted(origins))}" if origins else ""
        raise Unauthorized(f"The cookie `{cookie}` counts for pages of this server's own origin{others}.")


@dataclass(frozen=True, slots=True)
class LoginScopes:
    """The scopes of logins elsewhere: `base` for each, and more by the roles they have there."""

    base: frozenset[Scope]
    by_role: Mapping[str, frozenset[Scope]]

    def of(self, roles: Iterable[str]) -> frozenset[Scope]:
        return self.base.union(*(self.by_role.get(role, frozenset()) for role in roles))


def identity_from(owner: object, scopes: frozenset[Scope], prefix: str = "", **more: Any) -> Identity:
    """The identity of the owner whom another server names, with `prefix` before the name. Raises Unauthorized if
    the name cannot be one here.
    """
    try:
        name = owner_name(owner) if isinstance(owner, str) else ""
        return Identity(name and f"{prefix}{name}", scopes, **more)
    except ValueError as error:
        raise Unauthorized(f"The owner that the credential names cannot be one here: {error}.") from None
