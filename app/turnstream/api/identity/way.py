"""A way to authenticate: a function from a request to an identity."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity, Scope, owner_name

# Seconds for which a checked token, or the absence of tokens, is trusted without a query.
BELIEVED = 5.0

# Returns None for a request without a credential of its kind. Raises Unauthorized for one that is not valid.
Authenticate = Callable[[Request], Awaitable[Identity | None]]
# Raises RequestRefused or Unavailable for a call of the identity that it refuses; true: the call may change something.
Admit = Callable[[Identity, bool], None]


# The value of a client without a token, if its library demands one.
_NO_TOKEN = frozenset({"", "none"})


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return None if scheme.lower() != "bearer" or token.strip() in _NO_TOKEN else token.strip()


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
