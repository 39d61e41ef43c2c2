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


def _with_tokens(
    settings: Settings,
    work: Callable[[Tokens], Awaitable[T]],
    opened: Callable[[Settings], AbstractAsyncContextManager[Database]] = open_present_database,
) -> T:
    async def run() -> T:
        async with opened(settings) as database:
            return await work(Tokens(database))

    return asyncio.run(run())


def checked_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """As click wants a callback. Lists are for people to read, one name a line."""
    if name is not None and not (1 <= len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise click.BadParameter(f"wanted are 1 to {_LONGEST_NAME} printable characters, without a blank at the ends")
    return name


@click.group()
def tokens() -> None:
    """Bearer tokens: who may use the server, and as whom."""


@tokens.command()
@click.argument("name", callback=checked_name)
@click.option("--owner", callback=checked_name, help="whose chats and documents it opens; NAME when left out")
def create(name: str, owner: str | None) -> None:
    """Make a token called NAME and print it, this once. From then on the server asks for one."""
    settings = read_settings()
    token = _with_tokens(settings, lambda all_tokens: all_tokens.create(name, owner or name), open_database)
    click.echo(f"a token of {owner or name}, in {database_name(settings)}:", err=True)
    click.echo(token)


@tokens.command("list")
def list_tokens() -> None:
    """Names and owners; the tokens themselves are not stored."""
    for token in _with_tokens(read_settings(), lambda all_tokens: all_tokens.list()):
        click.echo(f"{token.name}\t{token.owner}\t{token.created_at:%Y-%m-%d}")


@tokens.command()
@click.argument("name")
def delete(name: str) -> None:
    """Take the token called NAME back; a running server forgets it within seconds."""
    if not _with_tokens(read_settings(), lambda all_tokens: all_tokens.delete(name)):
        raise NotFound(f"there is no token named {name}")
