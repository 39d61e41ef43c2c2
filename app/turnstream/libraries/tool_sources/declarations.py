"""Reads a tools file, which declares the policies of tools, and the tables of each kind of tool source."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any, TypeVar, cast

from turnstream.domain.errors import ConfigError, errors_named
from turnstream.domain.turns import ToolSpec
from turnstream.libraries.tool_sources.tables import PolicyTable, read_file
from turnstream.tools.policy import Policy, PolicyOptions, check_for
from turnstream.tools.tool import Outcome, Tool, ToolContext

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Declarations:
    """The content of a tools file. `tables` are the tables of sources, by kind and name. `policies` are the options of
    policies, by the name of the tool. Error texts name the `source`. Texts of tables may name variables of the
    `environment`.
    """

    source: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policies: Mapping[str, PolicyOptions] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def each(self, kind: str, make: Callable[[str, Any], Made]) -> list[Made]:
        """Calls `make` with the name and the keys of each table `[kind.NAME]`, and returns the results. A ValueError
        becomes a ConfigError that names the place in the file.
        """
        made = []
        for name, table in self.tables.get(kind, {}).items():
            with errors_named(f"{self.source}: [{kind}.{name}]"):
                made.append(make(name, table))
        return made

    def fill(self, key: str, text: str) -> str:
        """Returns the text with the values of variables in place of `$NAME` and `${NAME}`, and a dollar sign in place
        of `$$`.
        """
        try:
            return Template(text).substitute(self.environment)
        except KeyError as error:
            name = error.args[0]
            raise ValueError(f"`{key}` names ${name}, which is not set: set it in the environment or in .env") from None
        except ValueError:
            raise ValueError(f"`{key}` has a $ without the name of a variable: write $$ for a dollar") from None

    def fill_all(self, key: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: self.fill(f"{key}.{name}", text) for name, text in texts.items()}

    def apply_policies(self, tools: Iterable[Tool], prefixes: Sequence[str] = ()) -> list[Tool]:
        """Returns the tools with the policies that are declared for them. A policy whose name begins with one of
        `prefixes` may belong to a tool that its source lists later. Raises ConfigError for any other policy without a
        tool.
        """
        found = list(tools)
        names = [tool.spec.name for tool in found]
        for name in self.policies:
            if name not in names and not name.startswith(tuple(prefixes)):
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]}?" if close else f"the tools are: {', '.join(names) or 'none'}"
                raise ConfigError(f"{self.source}: [policy.{name}] there is no tool of this name; {hint}")
        for index, tool in enumerate(found):
            if options := self.policies.get(tool.spec.name):
                with errors_named(f"{self.source}: [policy.{tool.spec.name}]"):
                    found[index] = _with_options(tool, options)
        return found


def read_declarations(
    path: Path, environment: Mapping[str, str], kinds: Mapping[str, type[PolicyTable]] = MappingProxyType({})
) -> Declarations:
    """Reads a tools file. `kinds` maps each kind of source to the keys of its tables. Raises ConfigError with a
    sentence.
    """
    tables = dict(read_file(path, kinds))
    policies = {name: table.options() for name, table in tables.pop("policy").items()}
    return Declarations(str(path), tables, policies, environment)


def _with_options(tool: Any, options: PolicyOptions) -> Tool:
    """Returns the same tool with these options in its policy. Raises ValueError for an option that this tool cannot
    have.
    """
    check_for(tool.spec, options)
    policy = replace(tool.policy, **options)
    # The tool itself may read its policy when it formats results, so the field `policy` is replaced if the tool has it.
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
