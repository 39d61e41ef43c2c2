"""Logins at another server, which is an issuer or a proxy: the settings that all ways to log in share, and the scopes
of a login.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request

from turnstream.config import Section
from turnstream.domain.errors import ConfigError, Unauthorized
from turnstream.domain.identity import Identity, Scope, checked_scopes

# Invisible characters that are letters, marks or symbols in Unicode; `isprintable` covers the others.
_DRAWN_AS_NOTHING = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, slots=True)
class LoginScopes:
    """The scopes of logins at another server: every login has `base`, and each role adds its scopes in `by_role`."""

    base: frozenset[Scope]
    by_role: Mapping[str, frozenset[Scope]]

    def of(self, roles: Iterable[str]) -> frozenset[Scope]:
        return self.base.union(*(self.by_role.get(role, frozenset()) for role in roles))


class LoginSection(Section):
    """Base class for the settings of extensions that accept logins at another server. With prefixes, the names of
    owners begin with `owner_prefix` and a colon.
    """

    owner_prefix: ClassVar[str]

    login_prefixes: bool = Field(
        False, description="true: owners of the issuer are named `jwt:NAME`, those of the proxy `proxy:NAME`"
    )
    login_scopes: str = Field(
        "read, chat, approve", description="scopes of all users of the issuer or the proxy; or none"
    )
    login_roles: str | None = Field(
        None, description="further scopes by role, such as `staff=read chat approve admin, guest=read`"
    )

    @property
    def prefix(self) -> str:
        return f"{self.owner_prefix}:" if self.login_prefixes else ""

    def model_post_init(self, _context: Any, /) -> None:
        self.scopes()

    def scopes(self) -> LoginScopes:
        """Parses the two settings of scopes. Raises ConfigError."""
        base = _scopes("TURNSTREAM_LOGIN_SCOPES", "" if self.login_scopes == "none" else self.login_scopes)
        by_role = {}
        for entry in (self.login_roles or "").split(","):
            role, mark, scopes = entry.partition("=")
            if not entry.strip():
                continue
            if not mark or not role.strip():
                raise ConfigError("TURNSTREAM_LOGIN_ROLES must be such as `staff=read chat approve admin, guest=read`.")
            by_role[role.strip()] = _scopes("TURNSTREAM_LOGIN_ROLES", scopes)
        return LoginScopes(base, by_role)


def owner_prefixes() -> frozenset[str]:
    """Returns the prefixes of all installed extensions."""
    return frozenset(section.owner_prefix for section in LoginSection.__subclasses__())


def _scopes(setting: str, names: str) -> frozenset[Scope]:
    try:
        return frozenset(checked_scopes(names.replace(",", " ").split()))
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.") from None


def identity_from(owner: object, scopes: frozenset[Scope], prefix: str = "", **more: Any) -> Identity:
    """Returns the identity of an owner whom another server names, with `prefix` before the name. Raises Unauthorized if
    the name is not allowed here.
    """
    try:
        name = owner_name(owner) if isinstance(owner, str) else ""
        return Identity(name and f"{prefix}{name}", scopes, **more)
    except ValueError as error:
        raise Unauthorized(f"The owner in the credential cannot be an owner here: {error}.") from None


def check_origin_of_cookie(request: Request, cookie: str, origins: Collection[str] = ()) -> None:
    """Raises Unauthorized if a page of a foreign origin may have sent the request. Every origin is foreign except this
    server's own origin and `origins`.
    """
    origin = request.headers.get("origin")
    own = request.headers.get("sec-fetch-site") == "same-origin"
    if not own and origin not in origins and (origin is not None or request.method not in {"GET", "HEAD"}):
        others = f", and of {', '.join(sorted(origins))}" if origins else ""
        raise Unauthorized(f"The cookie `{cookie}` is accepted from pages of this server's own origin{others}.")


def owner_name(given: str) -> str:
    """Returns the name of an owner that a person or another server gave: normalised (NFC), without spaces around it.
    Raises ValueError for invisible characters.
    """
    name = unicodedata.normalize("NFC", given).strip()
    if not name.isprintable() or _DRAWN_AS_NOTHING.search(name):
        raise ValueError("an owner must have no control or invisible characters")
    return name
