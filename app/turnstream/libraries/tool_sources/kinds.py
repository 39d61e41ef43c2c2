"""Defines the kinds of tool sources, and reads the tools file, which has tables of these kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ConfigDict

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, errors_collected
from turnstream.extension import Extension, left_out, refused
from turnstream.libraries.tool_sources.declarations import Declarations, read_declarations
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools.sources import DeclaredTools, LoadedTools


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of tool source. Its tables in the tools file are `[name.NAME]`, and have the keys of `table`, which is
    None for a kind without tables. `make` receives the content of the file, and does not connect to any source. `make`
    raises one ConfigError with a sentence for each mistake.
    """

    name: str
    table: type[PolicyTable] | None
    make: Callable[[Declarations], LoadedTools]


def source_kinds(settings: Settings, extensions: Sequence[Extension]) -> Sequence[SourceKind]:
    """Returns the kinds of the extensions. Refuses tables of an installed extension that is not among `extensions`."""
    kinds = {kind.name: kind for extension in extensions for kind in kinds_of(extension, settings)}
    for extension in left_out(extensions):
        for kind in (kind for kind in kinds_of(extension, settings) if kind.table is not None):
            kinds.setdefault(kind.name, SourceKind(kind.name, _AnyTable, partial(_refuse, kind.name, extension)))
    return list(kinds.values())


def kinds_of(extension: Extension, settings: Settings) -> Sequence[SourceKind]:
    return [kind for kind in extension.tool_sources(settings) if isinstance(kind, SourceKind)]


class _AnyTable(PolicyTable):
    model_config = ConfigDict(extra="allow")


def _refuse(kind: str, extension: Extension, declarations: Declarations) -> LoadedTools:
    for name in declarations.tables.get(kind, {}):
        raise refused(f"{declarations.source}: [{kind}.{name}]", extension)
    return LoadedTools()


def read_tools_file(file: Path | None, kinds: Sequence[SourceKind], environment: Mapping[str, str]) -> Declarations:
    """Returns the content of the file, which may have tables of these kinds. Raises ConfigError."""
    if file is None:
        return Declarations(environment=environment)
    return read_declarations(file, environment, {kind.name: kind.table for kind in kinds if kind.table is not None})


def declared_tools(file: Path | None, kinds: Sequence[SourceKind], environment: Mapping[str, str]) -> DeclaredTools:
    """Returns the tools of all kinds, as the tables of the file declare them. Raises ConfigError with a sentence for
    each mistake.
    """
    problems: list[str] = []
    declarations, made = Declarations(environment=environment), list[LoadedTools]()
    with errors_collected(problems):
        declarations = read_tools_file(file, kinds, environment)
    for kind in kinds:
        with errors_collected(problems):
            made.append(kind.make(declarations))
    if problems:
        raise ConfigError(*problems)
    return DeclaredTools(made, declarations.apply_policies)
