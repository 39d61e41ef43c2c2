"""The declarations of a tools file: HTTP tools, MCP servers, and the policies of tools from elsewhere."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, cast

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.tools.declared.tables import McpTable, ToolsFile, read_file
from turnstream.tools.policy import Policy, PolicyOptions, policy_of
from turnstream.tools.tool import Outcome, Tool, ToolContext

_CHECKED_WITH_SPEC = frozenset({"memo", "cache_seconds", "retries", "fallback"})


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that is started by `command`, or reached at `url`.

    `prefix` stands before the names of its tools. `tools` are offered, or all with None. The names in `tools`,
    `read_only` and `policies` are those of the server, without the prefix. `trusted`: hints that a tool is read-only or
    idempotent are taken as true. A question of the server waits `elicitation` seconds for a person; None: it may not
    ask. `env` and `headers` hold secrets: environment variables are filled in already.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    tools: tuple[str, ...] | None = None
    read_only: frozenset[str] = frozenset()
    trusted: bool = False
    elicitation: float | None = 300.0
    policy: Policy = field(default_factory=Policy)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def name_prefix(self) -> str:
        """The beginning of the names that its tools have in the toolset."""
        return f"{self.prefix or self.name}__"

    def policy_of(self, tool: str) -> Policy:
        return self.policies.get(tool, self.policy)


@dataclass(frozen=True, slots=True)
class HttpDeclaration:
    """An HTTP tool of the operator. `internal` allows its own host to be internal. `spec.http` holds secrets."""

    spec: ToolSpec
    policy: Policy
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Declarations:
    """The content of a tools file. `policies` are options for tools by name; `source` is named in error texts."""

    source: str = ""
    http: tuple[HttpDeclaration, ...] = ()
    servers: tuple[McpServer, ...] = ()
    policies: Mapping[str, PolicyOptions] = field(default_factory=dict)

    def http_tools(self, make: Callable[[HttpDeclaration], Tool]) -> list[Tool]:
        """The HTTP tools. Raises ConfigError where `make` raises ValueError."""
        tools = []
        for declaration in self.http:
            with errors_named(f"{self.source}: [http.{declaration.spec.name}]"):
                tools.append(make(declaration))
        return tools

    def apply_policies(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools with the policies declared for them. Raises ConfigError for a policy without a tool."""
        found = list(tools)
        names = [tool.spec.name for tool in found]
        for name in self.policies:
            # A server may list a tool of this name later.
            if name not in names and not any(name.startswith(server.name_prefix) for server in self.servers):
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]}?" if close else f"the tools are: {', '.join(names) or 'none'}"
                raise ConfigError(f"{self.source}: [policy.{name}] there is no tool of this name; {hint}")
        for index, tool in enumerate(found):
            if options := self.policies.get(tool.spec.name):
                with errors_named(f"{self.source}: [policy.{tool.spec.name}]"):
                    found[index] = _with_options(tool, options)
        return found


def read_declarations(path: Path, environment: Mapping[str, str]) -> Declarations:
    """Reads a tools file and fills in the variables that it names. Raises ConfigError with a sentence."""
    file, variables = read_file(path), _Variables(environment)
    http = []
    for name, table in file.http.items():
        with errors_named(f"{path}: [http.{name}]"):
            headers = variables.fill_all("headers", table.headers)
            call = HttpCall(variables.fill("url", table.url), headers=headers)
            schema, description = table.input_schema, table.description
            spec = ToolSpec(name, description, schema, table.read_only, table.retry_safe, http=call)
            http.append(HttpDeclaration(spec, policy_of(spec, table.options()), table.internal))
    servers = []
    for name, mcp_table in file.mcp.items():
        with errors_named(f"{path}: [mcp.{name}]"):
            servers.append(_server(name, mcp_table, file, variables))
    policies = {name: table.options() for name, table in file.policy.items()}
    return Declarations(str(path), tuple(http), tuple(servers), policies)


def _with_options(tool: Any, options: PolicyOptions) -> Tool:
    """The same tool with another policy. Raises ValueError for an option that this tool cannot have."""
    policy_of(tool.spec, {key: value for key, value in options.items() if key in _CHECKED_WITH_SPEC})
    policy = replace(tool.policy, **options)
    # The tool itself may read its policy, for the form of its results: replace the field where there is one.
    if is_dataclass(tool) and any(each.name == "policy" for each in fields(tool)):
        return cast("Tool", replace(tool, policy=policy))  # type: ignore[type-var]
    return _ToolWithPolicy(tool, policy)


@dataclass(frozen=True, slots=True)
class _ToolWithPolicy:
    tool: Tool
    policy: Policy

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        return await self.tool(context, input_json)


class _Variables:
    """Substitution of `$NAME` and `${NAME}` by variables of the environment, and of `$$` by a dollar."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def fill(self, key: str, text: str) -> str:
        try:
            return Template(text).substitute(self._environment)
        except KeyError as error:
            name = error.args[0]
            raise ValueError(f"`{key}` names ${name}, which is not set: set it in the environment or in .env") from None
        except ValueError:
            raise ValueError(f"`{key}` has a $ without the name of a variable: write $$ for a dollar") from None

    def fill_all(self, key: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: self.fill(f"{key}.{name}", text) for name, text in texts.items()}


def _server(name: str, table: McpTable, file: ToolsFile, variables: _Variables) -> McpServer:
    server = McpServer(
        name,
        command=table.command,
        args=tuple(variables.fill("args", argument) for argument in table.args),
        env=variables.fill_all("env", table.env),
        cwd=table.cwd,
        url=None if table.url is None else variables.fill("url", table.url),
        headers=variables.fill_all("headers", table.headers),
        prefix=table.prefix,
        tools=None if table.tools is None else tuple(table.tools),
        read_only=frozenset(table.read_only),
        trusted=table.trusted,
        elicitation=None if table.elicitation is False else table.elicitation,
        policy=Policy(**table.options()),
    )
    prefix, policies = server.name_prefix, {}
    named = {name.removeprefix(prefix): each for name, each in file.policy.items() if name.startswith(prefix)}
    for tool in {**table.policy, **named}:
        # Options by full name override those in the server's table for the tool, and these override the options for
        # all tools of the server.
        tables = [each for each in (table, table.policy.get(tool), named.get(tool)) if each is not None]
        options = {key: value for each in tables for key, value in each.options().items()}
        with errors_named(f"policy.{tool}", ValueError):
            policies[tool] = Policy(**options)
    return replace(server, policies=policies)


@contextmanager
def errors_named(place: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    """Turns a ValueError into a ConfigError, or another kind, whose text begins with the place of the mistake."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{place} {error}") from None
