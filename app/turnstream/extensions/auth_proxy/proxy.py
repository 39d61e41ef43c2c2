"""Authenticates requests from a proxy, which names the owner in a header and proves its own identity by a secret."""

import hmac
from dataclasses import dataclass

from starlette.requests import Request

from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.libraries.logins import LoginScopes, identity_from

SECRET_HEADER = "X-Turnstream-Proxy-Secret"  # noqa: S105, a name


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """Authenticates requests that come from the proxy. In `roles_header`, commas or spaces separate the roles. `prefix`
    is put before the owner's name.
    """

    secret: str
    scopes: LoginScopes
    owner_header: str
    roles_header: str | None = None
    plan_header: str | None = None
    prefix: str = ""

    async def identity_of(self, request: Request) -> Identity | None:
        sent = _single(request, SECRET_HEADER)
        if sent is None:
            return None
        if not hmac.compare_digest(sent.encode(), self.secret.encode()):
            raise Unauthorized(f"`{SECRET_HEADER}` is not the secret of this server.")
        owner = _single(request, self.owner_header)
        if owner is None:
            raise Unauthorized(f"The proxy must name the owner in `{self.owner_header}`.")
        roles = _single(request, self.roles_header) if self.roles_header else None
        plan = _single(request, self.plan_header) if self.plan_header else None
        names = frozenset((roles or "").replace(",", " ").split())
        return identity_from(owner, self.scopes.of(names), self.prefix, plan=plan, roles=names)


def _single(request: Request, name: str) -> str | None:
    """Returns the value of a header. Raises Unauthorized for a repeated header, because the client may have sent one of
    the values.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Unauthorized(f"`{name}` must be sent once.")
    return values[0] if values else None
