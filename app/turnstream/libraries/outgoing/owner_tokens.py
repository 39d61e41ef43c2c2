"""Access tokens that owners have for services: the interface between tools and the extension for sign-ins."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol
from uuid import UUID

from pydantic import Field

from turnstream.tools.tool import SignIn, ToolUnavailable

# Keys that a table of a tools file may have only together with `auth`.
AUTH_KEYS: Final = ("issuer", "client_id", "client_secret", "scopes", "audience", "sign_in_by")

# A role or a person who signs in for owners.
SignInPrincipal = Annotated[str, Field(pattern=r"^(role|person):\S(.*\S)?$")]


class OAuthResource(Protocol):
    """A service that accepts access tokens of owners. `issuer` is the only issuer whose tokens are accepted; by
    default, the service names an issuer. Without a `client_id`, the client uses its metadata document, or registers. If
    `exchange` is true, the caller's token is exchanged at the issuer, for `audience`, without a sign-in. The principals
    in `sign_in_by` sign in for owners; by default, each owner signs in.
    """

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str | None: ...
    @property
    def issuer(self) -> str | None: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def client_secret(self) -> str | None: ...
    @property
    def scopes(self) -> tuple[str, ...]: ...
    @property
    def exchange(self) -> bool: ...
    @property
    def audience(self) -> str | None: ...
    @property
    def sign_in_by(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class HttpService:
    """The service behind all HTTP tools that have the same origin: an owner signs in to the service once. `name` is its
    host.
    """

    name: str
    url: str
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    exchange: bool = False
    audience: str | None = None
    sign_in_by: tuple[str, ...] = ()


class NoTokenNow(ToolUnavailable):
    """The owner has no token for a service now: the owner signed out, or sent no token to exchange."""


@dataclass(frozen=True, slots=True)
class Token:
    """An access token of an owner. A refreshed token has another `version`."""

    access: str = field(repr=False)
    version: int
    scopes: tuple[str, ...] = ()


class OwnerTokens(Protocol):
    async def token(self, owner: str, server: OAuthResource) -> Token | None:
        """Returns the owner's token, or None if the owner must sign in. Raises ToolUnavailable."""
        ...

    async def refreshed(self, owner: str, server: OAuthResource, version: int) -> Token | None:
        """Returns a token that is newer than `version`, or None if the owner must sign in. Raises ToolUnavailable."""
        ...

    def ask(self, owner: str, turn: UUID, server: OAuthResource, scopes: Collection[str], seen: int | None) -> SignIn:
        """Creates the sign-in ask of a call. `seen` is the version of the token that the service refused. Raises
        ToolUnavailable if the service has no sign-in.
        """
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class ServiceAccess:
    """Gives tools access to a service. `tokens` is set when the server runs with an extension for sign-ins."""

    service: HttpService
    tokens: OwnerTokens | None = None


def accesses_of(tools: Iterable[object]) -> Sequence[ServiceAccess]:
    """Returns the service accesses that these tools have."""
    found = (getattr(tool, "access", None) for tool in tools)
    return [access for access in found if isinstance(access, ServiceAccess)]


def check_auth(auth: str | None, given: Collection[str]) -> None:
    """Checks that the keys of a table fit its `auth`. Raises ValueError."""
    keys = set(given) & set(AUTH_KEYS)
    if auth is None and keys:
        raise ValueError(f'`{min(keys)}` needs `auth = "oauth"` or `auth = "exchange"`')
    if auth == "oauth" and "audience" in keys:
        raise ValueError('`audience` needs `auth = "exchange"`')
    if auth == "exchange" and "sign_in_by" in keys:
        raise ValueError('`sign_in_by` needs `auth = "oauth"`: else nobody signs in')
    if "client_secret" in keys and "client_id" not in keys:
        raise ValueError("`client_secret` needs a `client_id`")
    if auth == "exchange" and (lacking := {"issuer", "client_id"} - keys):
        raise ValueError(f'`auth = "exchange"` needs `{min(lacking)}`: the issuer, and the client of this server there')
