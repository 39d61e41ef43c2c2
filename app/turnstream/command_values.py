"""Checks of the values of commands: click callbacks for names and owners."""

import click

from turnstream.domain.identity import Identity

_LONGEST_NAME = 100


def checked_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """A click callback. A name must fit on one line of a list, and show no invisible difference to another one."""
    if name is not None and not (1 <= len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise click.BadParameter(
            f"a name must have 1 to {_LONGEST_NAME} printable characters, and no space at its start or end"
        )
    return name


def checked_owner(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """A click callback for an owner who receives a token or a grant. An owner who has moved away can only be exported
    and erased.
    """
    if name is not None and checked_name(context, parameter, name):
        try:
            Identity(name)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return name
