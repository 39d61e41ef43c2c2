"""`turnstream tokens`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import click

from app.config import Settings, read_settings
from app.domain.errors import NotFound
from app.setup.databases import database_name, open_database, open_present_database
from app.storage.database import Database
from app.storage.tokens import Tokens

T = TypeVar("T")
_LONGEST_NAME = 100


def with_tokens(
    settings: Settings,
    work: Callable[[Tokens], Awaitable[T]],
    opened: Callable[[Settings], AbstractAsyncContextManager[Database]] = open_present_database,
) -> T:
    async def run() -> T:
        async with opened(settings) as database:
            return await work(Tokens(database))

    return asyncio.run(run())


def checked_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """A click callback. A name must fit on one line of a list, and show no invisible difference to another one."""
    if name is not None and not (1 <= len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise click.BadParameter(
            f"a name must have 1 to {_LONGEST_NAME} printable characters, and no space at its start or end"
        )
    return name


@click.group()
def tokens() -> None:
    """Manage bearer tokens, which give access to the server."""


@tokens.command()
@click.argument("name", callback=checked_name)
@click.option("--owner", callback=checked_name, help="Owner whose chats and documents it opens.  [default: NAME]")
def create(name: str, owner: str | None) -> None:
    """Create a token called NAME and print it once. While there is a token, the server asks every client for one."""
    settings = read_settings()
    token = with_tokens(settings, lambda stored: stored.create(name, owner or name), open_database)
    click.echo(f"Created a token of {owner or name} in {database_name(settings)}. It is shown only once:", err=True)
    click.echo(token)


@tokens.command("list")
def list_tokens() -> None:
    """List names and owners. The tokens themselves are not stored."""
    for token in with_tokens(read_settings(), lambda stored: stored.list()):
        click.echo(f"{token.name}\t{token.owner}\t{token.created_at:%Y-%m-%d}")


@tokens.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the token called NAME. A running server refuses it within seconds."""
    if not with_tokens(read_settings(), lambda stored: stored.delete(name)):
        raise NotFound(f"there is no token named {name}; `turnstream tokens list` shows the names")
