"""Access tokens of owners for services: the interface between tools and the extension for sign-ins."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol
from uuid import UUID

from pydantic import Field

from turnstream.tools.tool import SignIn, ToolUnavailable

# The keys of a tools file's table that require `auth`.
AUTH_KEYS: Final = ("issuer", "client_id", "client_secret", "scopes", "audience", "sign_in_by")

# A principal that signs in for owners.
SignInPrincipal = Annotated[str, Field(pattern=r"^(role|person):\S(.*\S)?$")]


class OAuthResource(Protocol):
    """A service that accepts access tokens of owners. `issuer` is the only accepted issuer of tokens; by default the
    service names one. Without a `client_id` the client uses its metadata document or registers. With `exchange` the
    caller's token is exchanged at the issuer, for `audience`, without a sign-in. The principals `sign_in_by` sign in
    for owners; by default each owner does.
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
    """The service of all HTTP tools with one origin: an owner signs in to it once. `name` is its host."""

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
    """The owner has no token for a service now: the owner signed out, or came without an exchangeable token."""


@dataclass(frozen=True, slots=True)
class Token:
    """An access token of an owner. A refreshed token has another `version`."""

    access: str = field(repr=False)
    version: int
    scopes: tuple[str, ...] = ()


class OwnerTokens(Protocol):
    async def token(self, owner: str, server: OAuthResource) -> Token | None:
        """None if the owner must sign in. Raises ToolUnavailable."""
        ...

    async def refreshed(self, owner: str, server: OAuthResource, version: int) -> Token | None:
        """Returns a token newer than `version`. None if the owner must sign in. Raises ToolUnavailable."""
        ...

    def ask(self, owner: str, turn: UUID, server: OAuthResource, scopes: Collection[str], seen: int | None) -> SignIn:
        """Creates the sign-in ask of a call. `seen` is the version of the refused token. Raises ToolUnavailable for a
        service without sign-in.
        """
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class ServiceAccess:
    """The access of tools to a service. `tokens` are set when a server runs with an extension for sign-ins."""

    service: HttpService
    tokens: OwnerTokens | None = None


def accesses_of(tools: Iterable[object]) -> Sequence[ServiceAccess]:
    """The accesses among the tools."""
    found = (getattr(tool, "access", None) for tool in tools)
    return [access for access in found if isinstance(access, ServiceAccess)]


def check_auth(auth: str | None, given: Collection[str]) -> None:
    """Checks the keys of a table that depend on `auth`. Raises ValueError."""
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
