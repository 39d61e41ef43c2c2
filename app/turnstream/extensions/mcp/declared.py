"""The operator's declarations of MCP servers: the tables `[mcp.NAME]` of the tools file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from turnstream.domain.errors import errors_named
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.outgoing.owner_tokens import SignInPrincipal, check_auth
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools.policy import Policy

MOST_OWN_SERVERS: Final = 10  # servers that one owner may add


class McpTable(PolicyTable):
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    auth: Literal["oauth", "exchange"] | None = None
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: list[str] = Field(default_factory=list)
    audience: str | None = None
    sign_in_by: list[SignInPrincipal] = Field(default_factory=list)
    owner_tools: bool = False
    prefix: str = ""
    tools: list[str] | None = None
    prompts: bool | None = None
    resources: bool | None = None
    read_only: list[str] = Field(default_factory=list)
    trusted: bool = False
    elicitation: Annotated[float, Field(gt=0)] | Literal[False] = 300.0
    policy: dict[str, PolicyTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server needs either a `command` or a `url`")
        kind, unused = ("command", {"headers"}) if self.url is None else ("url", {"args", "env", "cwd"})
        for key in sorted(unused & self.model_fields_set):
            raise ValueError(f"a server with a `{kind}` takes no `{key}`: remove one of them")
        return self

    @model_validator(mode="after")
    def _check_auth(self) -> Self:
        if self.auth is not None and self.url is None:
            raise ValueError("`auth` needs a `url`: a process has the credentials of its `env`")
        check_auth(self.auth, self.model_fields_set)
        if self.owner_tools and self.auth is None:
            raise ValueError('`owner_tools` needs `auth = "oauth"` or `auth = "exchange"`: it uses the owner\'s token')
        for tool, policy in self.policy.items() if self.owner_tools else ():
            if options := sorted(set(policy.options()) - {"approval"}):
                raise ValueError(
                    f"`policy.{tool}.{options[0]}` and `owner_tools` exclude each other; `approval` may differ"
                )
        return self


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that is started by `command` or reached at `url`.

    The names of its tools begin with `prefix`. `tools` selects the offered tools; None offers all. People may use the
    server's prompts and resources if `prompts` and `resources` are true. `tools`, `read_only` and `policies` use the
    server's names, without the prefix. If a server is `trusted`, its read-only and idempotent hints are believed. A
    question that the server asks waits `elicitation` seconds for a person; if this is None, questions are refused.
    `env` and `headers` contain secrets, because environment variables are already inserted.

    With `oauth`, each owner signs in, and calls use the owner's token. The request for the list of tools uses
    `headers`. With `owner_tools`, this request uses the owner's token, because each owner has other tools. With
    `exchange`, owners do not sign in: the issuer exchanges the caller's token for a new token, which is for `audience`.
    Without a `client_id`, the client uses its metadata document or registers. If there are `scopes`, they replace the
    scopes that the server requests. `issuer` is the only accepted issuer of tokens; without an `issuer`, the server may
    name an issuer with a public address. The principals in `sign_in_by` sign in for owners. `allowed` marks a server
    that an owner has added: the server's address must be among the allowed addresses.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    oauth: bool = False
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    exchange: bool = False
    audience: str | None = None
    sign_in_by: tuple[str, ...] = ()
    owner_tools: bool = False
    allowed: Allowed | None = None
    prefix: str = ""
    tools: tuple[str, ...] | None = None
    prompts: bool = True
    resources: bool = True
    read_only: frozenset[str] = frozenset()
    trusted: bool = False
    elicitation: float | None = 300.0
    policy: Policy = field(default_factory=Policy)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def per_owner(self) -> bool:
        """Whether each owner has separate connections to the server."""
        return self.oauth or self.allowed is not None

    @property
    def name_prefix(self) -> str:
        """The prefix of its tools' names in the toolset."""
        return f"{self.prefix or self.name}__"

    def policy_of(self, tool: str) -> Policy:
        return self.policies.get(tool, self.policy)


def servers_of(declarations: Declarations) -> list[McpServer]:
    return declarations.each("mcp", partial(_server_of, declarations))


def _server_of(declarations: Declarations, name: str, table: McpTable) -> McpServer:
    server = McpServer(
        name,
        command=table.command,
        args=tuple(declarations.fill("args", argument) for argument in table.args),
        env=declarations.fill_all("env", table.env),
        cwd=table.cwd,
        url=None if table.url is None else declarations.fill("url", table.url),
        headers=declarations.fill_all("headers", table.headers),
        oauth=table.auth is not None,
        issuer=None if table.issuer is None else declarations.fill("issuer", table.issuer),
        client_id=None if table.client_id is None else declarations.fill("client_id", table.client_id),
        client_secret=None if table.client_secret is None else declarations.fill("client_secret", table.client_secret),
        scopes=tuple(table.scopes),
        exchange=table.auth == "exchange",
        audience=table.audience,
        sign_in_by=tuple(table.sign_in_by),
        owner_tools=table.owner_tools,
        prefix=table.prefix,
        tools=None if table.tools is None else tuple(table.tools),
        # An operator who selected tools has not approved the server's other offers.
        prompts=table.tools is None if table.prompts is None else table.prompts,
        resources=table.tools is None if table.resources is None else table.resources,
        read_only=frozenset(table.read_only),
        trusted=table.trusted,
        elicitation=None if table.elicitation is False else table.elicitation,
        policy=Policy(**table.options()),
    )
    if server.issuer is not None and not re.match(r"https?://[^/?#@\s]+", server.issuer):
        raise ValueError("`issuer` must be an address such as https://login.example.com")
    prefix, policies = server.name_prefix, {}
    named = {name.removeprefix(prefix): each for name, each in declarations.policies.items() if name.startswith(prefix)}
    for tool in {**table.policy, **named}:
        # Options under the full name of a tool override the options for this tool in the server's table. Both override
        # the options for all tools of the server.
        own = table.policy[tool].options() if tool in table.policy else {}
        options = {**table.options(), **own, **named.get(tool, {})}
        with errors_named(f"policy.{tool}", ValueError):
            policies[tool] = Policy(**options)
    for policy in (server.policy, *policies.values()):
        if server.oauth and policy.background:
            raise ValueError("`background` and `auth` exclude each other: a job cannot wait for a sign-in")
    return replace(server, policies=policies)
