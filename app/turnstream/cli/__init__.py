"""The command line: `turnstream COMMAND`."""

import gc
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

import click

from turnstream.domain.errors import ConfigError, RequestRefused, TurnstreamError
from turnstream.extension import installed, read_settings

# The module of each command, in this or in another distribution; extensions add more commands. Only the module of the
# called command is imported, so the terminal client starts without loading the server's libraries.
MODULES: Mapping[str, str] = {
    "serve": "turnstream.cli.serve",
    "chat": "turnstream_terminal.command",
    "migrate": "turnstream.cli.migrate",
    "conformance": "turnstream_conformance.command",
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, of the base class
        return [*MODULES, *commands_of_extensions()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = MODULES.get(cmd_name) or commands_of_extensions().get(cmd_name)
        if module is None:
            return None
        try:
            command: click.Command = getattr(_imported(cmd_name, module), cmd_name)
        except ModuleNotFoundError as error:
            package = error.name or ""
            if not package.startswith("turnstream_") or "." in package:
                raise
            return _not_installed(cmd_name, package.replace("_", "-"))
        return command


def commands_of_extensions(group: str = "") -> Mapping[str, str]:
    """Returns the commands of `group` (its name and a space), or the commands of no group, with their modules."""
    found = {path: module for extension in installed().values() for path, module in extension.commands.items()}
    names = {path.removeprefix(group): module for path, module in found.items() if path.startswith(group)}
    return {name: module for name, module in names.items() if " " not in name}


def _imported(command: str, module: str) -> ModuleType:
    """Imports the module of a command. Imported modules live as long as the process, so the garbage collector is off
    during the import (this saves a fifth of the time) and skips the modules later.
    """
    gc.disable()
    if command == "serve":
        # The import of rich by structlog takes a tenth of the start time, and the server's logs do not use rich.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    try:
        return import_module(module)
    finally:
        if sys.modules.get("rich", gc) is None:
            del sys.modules["rich"]  # so that tools may import it
        gc.freeze()
        gc.enable()


def _not_installed(command: str, distribution: str) -> click.Command:
    """Returns a command that accepts any arguments, and only reports the distribution of the real command."""

    def refuse(**_: object) -> None:
        raise ConfigError(
            f"`turnstream {command}` needs the distribution {distribution}, which is not installed;"
            f" install it from app/{distribution.replace('-', '_')} of turnstream's repository."
        )

    return click.Command(
        command,
        {"ignore_unknown_options": True},
        refuse,
        [click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        short_help=f"Not installed: needs {distribution}.",
        add_help_option=False,
    )


def _local_server_url() -> str:
    return read_settings().local_url


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "default_map": {"chat": {"server": _local_server_url}},
    },
)
@click.version_option(package_name="turnstream", prog_name="turnstream", message="%(prog)s %(version)s")
def commands() -> None:
    """A chat backend that streams over SSE and never loses a conversation."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Prints user errors as one sentence. Other exceptions are bugs and keep their traceback."""
    try:
        commands(arguments)
    except TurnstreamError as error:
        detail = error.detail if isinstance(error, RequestRefused) else str(error)
    else:
        return
    click.echo(f"turnstream: {detail}", err=True)
    sys.exit(1)
