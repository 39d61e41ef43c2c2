"""What a token, and an owner, may be called on the command line."""

import click

_MOST = 100


def checked_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """As click wants a callback. Lists are for people to read, one name a line."""
    if name is not None and not (1 <= len(name) <= _MOST and name.isprintable() and name == name.strip()):
        raise click.BadParameter(f"wanted are 1 to {_MOST} printable characters, without a blank at the ends")
    return name
