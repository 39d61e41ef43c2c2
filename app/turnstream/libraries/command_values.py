"""Parts of commands: an extensible group, and checks of names and owners."""

from importlib import import_module

import click

from turnstream.cli import commands_of_extensions
from turnstream.domain.identity import Identity

_LONGEST_NAME = 100


class OpenGroup(click.Group):
    """A group of commands to which extensions can add commands: `owners move` is the command `move` of the group
    `owners`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *commands_of_extensions(f"{self.name} ")])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if module := commands_of_extensions(f"{self.name} ").get(cmd_name):
            found = (each for each in vars(import_module(module)).values() if isinstance(each, click.Command))
            return next(command for command in found if command.name == cmd_name)
        return super().get_command(ctx, cmd_name)


def checked_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """A click callback. A name must fit on one line, and must not contain invisible characters."""
    if name is not None and not (1 <= len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise click.BadParameter(
            f"a name must have 1 to {_LONGEST_NAME} printable characters, and no space at its start or end"
        )
    return name


def checked_owner(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """A click callback for the owner of a new token or grant. Refuses the name of an owner who was moved to another
    server: such an owner can only be exported and erased.
    """
    if name is not None and checked_name(context, parameter, name):
        try:
            Identity(name)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return name
