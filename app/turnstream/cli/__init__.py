"""The command line: `turnstream COMMAND`."""

import gc
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

import click

from turnstream.domain.errors import RequestRefused, TurnstreamError
from turnstream_client.errors import ClientError
from turnstream_terminal.errors import explained

# Command → the module that defines it. Only the module of the called command is imported, so the terminal client starts
# without loading the server's libraries.
MODULES: Mapping[str, str] = {
    "serve": "turnstream.cli.serve",
    "chat": "turnstream_terminal.command",
    "docs": "turnstream.cli.documents",
    "tokens": "turnstream.cli.tokens",
    "owners": "turnstream.cli.owners",
    "turns": "turnstream.cli.turns",
    "why": "turnstream.cli.turns",
    "replicas": "turnstream.cli.replicas",
    "drain": "turnstream.cli.replicas",
    "usage": "turnstream.cli.usage",
    "audit": "turnstream.cli.audit",
    "migrate": "turnstream.cli.migrate",
    "doctor": "turnstream.cli.doctor",
    "replay": "turnstream.cli.replay",
    "compare": "turnstream.cli.compare",
    "conformance": "turnstream_conformance.command",
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, of the base class
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in MODULES:
            return None
        command: click.Command = getattr(_imported(cmd_name), cmd_name)
        return command


def _imported(command: str) -> ModuleType:
    """The module of a command. What it imports stays, so the garbage collector has nothing to look for in it, neither
    now, which would be a fifth of the time, nor later.
    """
    gc.disable()
    if command == "serve":
        # structlog imports rich, a tenth of the time, wherever it finds it. The server's logs have no use for it.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    try:
        return import_module(MODULES[command])
    finally:
        if sys.modules.get("rich", gc) is None:
            del sys.modules["rich"]  # tools may import it
        gc.freeze()
        gc.enable()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="turnstream", prog_name="turnstream", message="%(prog)s %(version)s")
def commands() -> None:
    """A chat backend that streams over SSE and never loses a conversation."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints errors that a person can fix as one sentence. Other exceptions are bugs and keep their traceback."""
    try:
        commands(arguments)
    except ClientError as error:
        detail = explained(error)
    except TurnstreamError as error:
        detail = error.detail if isinstance(error, RequestRefused) else str(error)
    else:
        return
    click.echo(f"turnstream: {detail}", err=True)
    sys.exit(1)
