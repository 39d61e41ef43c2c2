"""Reads the issuers for logins from the settings."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.extensions.login import LoginSettings
from turnstream.libraries.extras import need
from turnstream.libraries.logins import owner_prefixes
from turnstream.libraries.outgoing.issuer_keys import check_key_url, check_owner_claim

# The name of the issuer that the settings describe. The names of owners from other issuers begin with the name of their
# issuer.
MAIN: Final = "main"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")
# Reserved even if no installed extension gives its owners this prefix, because such an extension may be added later.
_TAKEN: Final = frozenset({MAIN, "jwt", "proxy", "person", "role", "owner", "local"})
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class LoginFailed(Exception):
    """A login cannot start or be completed. The text is a sentence for the person."""


class IssuerTable(BaseModel):
    """A table `[issuer.NAME]` of the file of issuers. `client_secret_env` names a variable of the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str
    client_id: str
    client_secret_env: str | None = None
    title: str | None = None
    scope: str = "openid profile email"
    owner_claim: str = "sub"
    owner_claim_is_fixed: bool = False
    groups_claim: str | None = None


@dataclass(frozen=True, slots=True)
class LoginIssuer:
    """An issuer for logins. `url` is its name in tokens. The names of its owners begin with `prefix`. A claim is a
    name, or a path with dots.
    """

    name: str
    url: str
    client_id: str
    client_secret: str | None = field(repr=False)
    title: str
    scope: str
    owner_claim: str
    groups_claim: str | None
    prefix: str


@dataclass(frozen=True, slots=True)
class Logins:
    """The settings of all logins. `base` is the public address of this server. `idle` and `life` limit a session, in
    seconds. `plans` has the plan of each group, in order of precedence.
    """

    base: str
    issuers: Mapping[str, LoginIssuer]
    plans: Mapping[str, str]
    idle: float
    life: float

    @property
    def is_secure(self) -> bool:
        return self.base.startswith("https:")

    def cookie(self, name: str) -> str:
        """Returns the full name of a cookie. With https, the name has a prefix that prevents other hosts of the domain
        from setting the cookie.
        """
        return f"__Host-turnstream_{name}" if self.is_secure else f"turnstream_{name}"


def read_logins(settings: Settings) -> Logins | None:
    """Returns the settings of logins; None if there is no issuer. Raises ConfigError."""
    given = settings.section(LoginSettings)
    tables = _further(given)
    if given.login_issuer is None and not tables:
        return None
    user = "TURNSTREAM_LOGIN_ISSUER" if given.login_issuer else "TURNSTREAM_LOGIN_ISSUERS_FILE"
    need("authlib", "login", user)
    issuers = {}
    if given.login_issuer is not None:
        if given.login_client_id is None:
            raise ConfigError("TURNSTREAM_LOGIN_ISSUER needs TURNSTREAM_LOGIN_CLIENT_ID.")
        check_owner_claim("TURNSTREAM_LOGIN_OWNER_CLAIM", given.login_owner_claim, given.login_owner_claim_is_fixed)
        secret = given.login_client_secret
        issuers[MAIN] = LoginIssuer(
            MAIN,
            _address("TURNSTREAM_LOGIN_ISSUER", given.login_issuer),
            given.login_client_id,
            secret.get_secret_value() if secret else None,
            given.login_title or _host(given.login_issuer),
            given.login_scope,
            given.login_owner_claim,
            given.login_groups_claim,
            given.prefix,
        )
    issuers |= tables
    urls = [each.url for each in issuers.values()]
    if len(set(urls)) < len(urls):
        raise ConfigError("TURNSTREAM_LOGIN_ISSUERS_FILE names an issuer that is named already.")
    return Logins(_base(given.login_url, user), issuers, _plans(given.login_plans), given.login_idle, given.login_life)


def _further(given: LoginSettings) -> Mapping[str, LoginIssuer]:
    """Returns the issuers that the file of issuers describes. Raises ConfigError."""
    path = given.login_issuers_file
    if path is None:
        return {}
    where = f"TURNSTREAM_LOGIN_ISSUERS_FILE: {path}"
    if not given.login_prefixes:
        raise ConfigError(
            f"{where} needs TURNSTREAM_LOGIN_PREFIXES=true: else two people with one name at two issuers would be one"
            " owner."
        )
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {error}.") from None
    tables = read.pop("issuer", {})
    if read or not isinstance(tables, dict):
        raise ConfigError(f"{where} must have tables [issuer.NAME] alone.")
    return {name: _issuer(f"{where}: [issuer.{name}]", name, table) for name, table in tables.items()}


def _issuer(where: str, name: str, table: object) -> LoginIssuer:
    taken = _TAKEN | owner_prefixes()
    if not _NAME.fullmatch(name) or name in taken:
        raise ConfigError(
            f"{where}: a name has small letters, digits and hyphens, and is none of {', '.join(sorted(taken))}."
        )
    try:
        read = IssuerTable.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: `{'.'.join(map(str, first['loc']))}`: {first['msg']}.") from None
    secret = None
    if read.client_secret_env is not None and not (secret := read_environment().get(read.client_secret_env)):
        raise ConfigError(f"{where}: `client_secret_env` names {read.client_secret_env}, which is not set.")
    check_owner_claim(
        f"{where}: owner_claim", read.owner_claim, read.owner_claim_is_fixed, "owner_claim_is_fixed = true"
    )
    return LoginIssuer(
        name,
        _address(f"{where}: `issuer`", read.issuer),
        read.client_id,
        secret,
        read.title or _host(read.issuer),
        read.scope,
        read.owner_claim,
        read.groups_claim,
        f"{name}:",
    )


def _base(url: str | None, user: str) -> str:
    if url is None:
        raise ConfigError(f"{user} needs TURNSTREAM_LOGIN_URL, the public address of this server.")
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOCAL
    if not (parts.scheme == "https" or is_local) or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            "TURNSTREAM_LOGIN_URL must begin with https://, and have no query: cookies of sessions are sent over TLS"
            " alone. On this machine http://localhost is accepted."
        )
    return url.rstrip("/")


def _address(setting: str, url: str) -> str:
    try:
        check_key_url(url)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.") from None
    return url


def _host(url: str) -> str:
    return urlsplit(url).netloc or url


def _plans(text: str | None) -> Mapping[str, str]:
    plans = {}
    for entry in (text or "").split(","):
        group, mark, plan = (part.strip() for part in entry.partition("="))
        if not entry.strip():
            continue
        if not mark or not group or not plan:
            raise ConfigError("TURNSTREAM_LOGIN_PLANS must be such as `staff=pro, guest=free`.")
        plans[group] = plan
    return plans
