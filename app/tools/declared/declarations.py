"""The tools that the file of TURNSTREAM_TOOLS_FILE declares, and how the others are to be run."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import cast

from app.domain.errors import ConfigError
from app.domain.turns import HttpCall, ToolSpec
from app.tools.declared.governed import governed
from app.tools.declared.tables import HttpTable, McpTable, PolicyTable, ToolsFile, read_file
from app.tools.policy import Policy, PolicyOptions, policy_of
from app.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that is started by `command`, or reached at `url`.

    `prefix` goes before the names of its tools. `tools` (None: all) are offered. In `tools`, `read_only` and `policies`
    are the server's own names. A server that is `trusted` is believed when it says that a tool is read-only or
    idempotent. Environment variables are filled in already: `env` and `headers` hold secrets.
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
    policy: Policy = field(default_factory=Policy)
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def beginning(self) -> str:
        """Of the names that its tools have here."""
        return f"{self.prefix or self.name}__"

    def policy_of(self, tool: str) -> Policy:
        return self.policies.get(tool, self.policy)


@dataclass(frozen=True, slots=True)
class HttpDeclaration:
    """A service of the operator; `internal` allows it, and no other, to be internal. `spec.http` holds secrets."""

    spec: ToolSpec
    policy: Policy
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Declarations:
    """`policies`: what is chosen for tools by their names, whoever wrote them. `where` begins the words of an error."""

    where: str = ""
    http: tuple[HttpDeclaration, ...] = ()
    servers: tuple[McpServer, ...] = ()
    policies: Mapping[str, PolicyOptions] = field(default_factory=dict)

    def made(self, make: Callable[[HttpDeclaration], Tool]) -> list[Tool]:
        """The HTTP tools. Raises ConfigError where `make` raises ValueError."""
        tools = []
        for declaration in self.http:
            with _said_of(f"{self.where}: [http.{declaration.spec.name}]"):
                tools.append(make(declaration))
        return tools

    def applied(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools with the policies chosen for them. Raises ConfigError for a policy of a tool that there is not."""
        found = list(tools)
        for name in self.policies:
            if not (any(tool.spec.name == name for tool in found) or self._may_come(name)):
                close = difflib.get_close_matches(name, [tool.spec.name for tool in found], n=1)
                meant = f"; is {close[0]} meant?" if close else ""
                raise ConfigError(f"{self.where}: [policy.{name}] there is no tool of this name{meant}")
        return [self._governed(tool) for tool in found]

    def _may_come(self, name: str) -> bool:
        return any(name.startswith(server.beginning) for server in self.servers)

    def _governed(self, tool: Tool) -> Tool:
        name = tool.spec.name
        if name not in self.policies:
            return tool
        with _said_of(f"{self.where}: [policy.{name}]"):
            return governed(tool, self.policies[name])


def read_declarations(path: Path, environment: Mapping[str, str]) -> Declarations:
    """What the file says, with the variables it names filled in. Raises ConfigError with a sentence."""
    file = read_file(path)
    http = []
    for name, declared in file.http.items():
        with _said_of(f"{path}: [http.{name}]"):
            http.append(_http(name, declared, _Variables(environment)))
    servers = []
    for name, server in file.mcp.items():
        with _said_of(f"{path}: [mcp.{name}]"):
            servers.append(_server(name, server, file, _Variables(environment)))
    policies = {name: table.options() for name, table in file.policy.items()}
    return Declarations(str(path), tuple(http), tuple(servers), policies)


class _Variables:
    """`$NAME` and `${NAME}` stand for variables of the environment, `$$` for a dollar."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def filled(self, key: str, text: str) -> str:
        try:
            return Template(text).substitute(self._environment)
        except KeyError as error:
            raise ValueError(f"{key}: the environment has no {error.args[0]}") from None
        except ValueError:
            raise ValueError(f"{key}: $ begins the name of a variable; a dollar is written $$") from None

    def all(self, key: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: self.filled(f"{key}.{name}", text) for name, text in texts.items()}


def _http(name: str, table: HttpTable, variables: _Variables) -> HttpDeclaration:
    call = HttpCall(variables.filled("url", table.url), headers=variables.all("headers", table.headers))
    spec = ToolSpec(name, table.description, table.input_schema, table.read_only, table.retry_safe, http=call)
    return HttpDeclaration(spec, policy_of(spec, table.options()), table.internal)


def _server(name: str, table: McpTable, file: ToolsFile, variables: _Variables) -> McpServer:
    server = McpServer(
        name,
        command=table.command,
        args=tuple(variables.filled("args", argument) for argument in table.args),
        env=variables.all("env", table.env),
        cwd=table.cwd,
        url=None if table.url is None else variables.filled("url", table.url),
        headers=variables.all("headers", table.headers),
        prefix=table.prefix,
        tools=None if table.tools is None else tuple(table.tools),
        read_only=frozenset(table.read_only),
        trusted=table.trusted,
        policy=Policy(**table.options()),
    )
    return replace(server, policies=dict(_policies(server, table, file.policy)))


def _policies(
    server: McpServer, table: McpTable, by_full_name: Mapping[str, PolicyTable]
) -> Iterator[tuple[str, Policy]]:
    """For one tool its own choices go before those for the server, and those by its full name before both."""
    full = {name: said for name, said in by_full_name.items() if name.startswith(server.beginning)}
    named = {name.removeprefix(server.beginning): said for name, said in full.items()}
    for tool in {**table.policy, **named}:
        chosen = [each.options() for each in (table, table.policy.get(tool), named.get(tool)) if each is not None]
        options = {key: value for each in chosen for key, value in each.items()}
        with _said_of(f"policy.{tool}", ValueError):
            policy = Policy(**cast("PolicyOptions", options))
        yield tool, policy


@contextmanager
def _said_of(where: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise kind(f"{where} {error}") from None
