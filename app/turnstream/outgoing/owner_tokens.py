"""Access tokens of owners for services: what tools that call a service need from the extension that signs owners in."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from turnstream.tools.tool import SignIn


class OAuthResource(Protocol):
    """A service that accepts access tokens of owners. `issuer` is the only accepted issuer of tokens; without it the
    service names one. Without a `client_id` the client is known by its metadata document or registered.
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


@dataclass(frozen=True, slots=True)
class HttpService:
    """The service of all HTTP tools of one origin: an owner signs in to it once. `name` is its host."""

    name: str
    url: str
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """An access token of an owner. `version` tells a refreshed one apart."""

    access: str = field(repr=False)
    version: int
    scopes: tuple[str, ...] = ()


class OwnerTokens(Protocol):
    async def token(self, owner: str, server: OAuthResource) -> Token | None:
        """None if the owner must sign in. Raises ToolUnavailable."""
        ...

    async def refreshed(self, owner: str, server: OAuthResource, version: int) -> Token | None:
        """A token that is newer than `version`. None if the owner must sign in. Raises ToolUnavailable."""
        ...

    def ask(self, owner: str, turn: UUID, server: OAuthResource, scopes: Collection[str], seen: int | None) -> SignIn:
        """Creates the ask for a sign-in that a call needs. `seen` is the version of the refused token."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class ServiceAccess:
    """The access of tools to a service. `tokens` are set when a server runs with an extension for sign-ins."""

    service: HttpService
    tokens: OwnerTokens | None = None


def accesses_of(tools: Iterable[object]) -> Sequence[ServiceAccess]:
    """The accesses of those of the tools that have one."""
    found = (getattr(tool, "access", None) for tool in tools)
    return [access for access in found if isinstance(access, ServiceAccess)]
