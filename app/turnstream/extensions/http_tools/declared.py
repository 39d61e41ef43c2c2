"""The operator's declarations of HTTP tools: the tables `[http.NAME]` of the tools file, and settings."""

import json
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from turnstream.domain.errors import ConfigError, errors_collected, errors_named
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools import HttpToolsSettings
from turnstream.extensions.http_tools.client import parse_url
from turnstream.extensions.http_tools.request_tools import RequestToolRules, read_secrets
from turnstream.extensions.http_tools.tool import HttpTool, HttpTools
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.libraries.outgoing.owner_tokens import HttpService, SignInPrincipal, check_auth
from turnstream.libraries.outgoing.signature import key_of
from turnstream.libraries.tool_sources.declarations import Declarations
from turnstream.libraries.tool_sources.kinds import SourceKind
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools.policy import policy_of
from turnstream.tools.sources import LoadedTools


class HttpTable(PolicyTable):
    url: str
    description: str = Field(min_length=1)
    input_schema: Annotated[
        str, BeforeValidator(lambda value: json.dumps(value, default=str) if isinstance(value, dict) else value)
    ]
    headers: dict[str, str] = Field(default_factory=dict)
    read_only: bool = False
    retry_safe: bool = False
    internal: bool = False
    auth: Literal["oauth", "exchange"] | None = None
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: list[str] = Field(default_factory=list)
    audience: str | None = None
    sign_in_by: list[SignInPrincipal] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_auth(self) -> Self:
        check_auth(self.auth, self.model_fields_set)
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("`auth` sets the header Authorization: remove it from `headers`")
        return self


def http_tools(settings: HttpToolsSettings) -> SourceKind:
    return SourceKind("http", HttpTable, partial(_make, settings))


def _make(settings: HttpToolsSettings, declarations: Declarations) -> LoadedTools:
    problems: list[str] = []
    allowed, reachable, secrets = Allowed(), Allowed(), read_secrets("", {})
    key = None if settings.signing_secret is None else settings.signing_secret.get_secret_value()
    with errors_collected(problems), errors_named("TURNSTREAM_HTTP_TOOLS_ALLOW:"):
        allowed = _allowed(settings.http_tools_allow)
    with errors_collected(problems), errors_named("TURNSTREAM_REQUEST_TOOLS_ALLOW:"):
        reachable = replace(_allowed(settings.request_tools_allow), public=settings.request_tools == "public")
    with errors_collected(problems), errors_named("TURNSTREAM_TOOL_SECRETS:"):
        secrets = read_secrets(settings.tool_secrets or "", declarations.environment)
    with errors_collected(problems), errors_named("TURNSTREAM_SIGNING_SECRET:"):
        if key is not None:
            key_of(key)
    if problems:
        raise ConfigError(*problems)
    rules = RequestToolRules(reachable, settings.request_tools_timeout, secrets)
    http = HttpTools(allowed, key, request_tools=rules)
    tools = declarations.each("http", partial(_tool_of, declarations, http))
    return LoadedTools(
        tools, declared=None if settings.request_tools == "off" else http.request_tool, connections=[http]
    )


def _allowed(entries: str | None) -> Allowed:
    return Allowed.of(entry.strip() for entry in (entries or "").split(",") if entry.strip())


def _tool_of(declarations: Declarations, http: HttpTools, name: str, table: HttpTable) -> HttpTool:
    headers = declarations.fill_all("headers", table.headers)
    call = HttpCall(declarations.fill("url", table.url), headers=headers)
    spec = ToolSpec(name, table.description, table.input_schema, table.read_only, table.retry_safe, http=call)
    policy, service = policy_of(spec, table.options()), None
    if table.auth is not None:
        if policy.background:
            raise ValueError("`background` and `auth` exclude each other: a job cannot wait for a sign-in")
        url = parse_url(call.url)
        service = HttpService(
            url.authority,
            str(url.origin()),
            None if table.issuer is None else declarations.fill("issuer", table.issuer),
            None if table.client_id is None else declarations.fill("client_id", table.client_id),
            None if table.client_secret is None else declarations.fill("client_secret", table.client_secret),
            tuple(table.scopes),
            table.auth == "exchange",
            table.audience,
            tuple(table.sign_in_by),
        )
    return http.operator_tool(spec, policy, internal=table.internal, service=service)
