"""Logins elsewhere: the settings that the ways to log in share, and the scopes that they give."""

from typing import Any

from pydantic import Field

from turnstream.api.identity.way import LoginScopes
from turnstream.config import Section
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import Scope, checked_scopes


class LoginSection(Section):
    """The base of the settings of each extension by which people log in elsewhere."""

    login_prefixes: bool = Field(
        False, description="true: owners of the issuer are named `jwt:NAME`, those of the proxy `proxy:NAME`"
    )
    login_scopes: str = Field(
        "read, chat, approve", description="scopes of all who come from the issuer or the proxy; or none"
    )
    login_roles: str | None = Field(
        None, description="more scopes by role, such as `staff=read chat approve admin, guest=read`"
    )

    def model_post_init(self, _context: Any, /) -> None:
        self.scopes()

    def scopes(self) -> LoginScopes:
        """Raises ConfigError."""
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


def _scopes(setting: str, names: str) -> frozenset[Scope]:
    try:
        return frozenset(checked_scopes(names.replace(",", " ").split()))
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.") from None
