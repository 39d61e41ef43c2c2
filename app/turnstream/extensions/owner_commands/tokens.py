"""`turnstream tokens`."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import click

from turnstream.config import Settings
from turnstream.domain.errors import NotFound
from turnstream.domain.identity import OF_A_PERSON, SCOPES, Identity, Scope
from turnstream.extension import own_cell, read_settings, selected
from turnstream.libraries.command_tables import print_table
from turnstream.libraries.command_values import checked_name, checked_owner
from turnstream.setup.databases import database_name, open_database, open_present_database
from turnstream.storage.database import Database
from turnstream.storage.owners.tokens import Tokens

T = TypeVar("T")
_SPAN = re.compile(r"(?P<count>[0-9]{1,5})(?P<unit>[dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def with_tokens(
    settings: Settings,
    work: Callable[[Tokens], Awaitable[T]],
    opened: Callable[[Settings], AbstractAsyncContextManager[Database]] = open_present_database,
) -> T:
    async def run() -> T:
        async with opened(settings) as database:
            return await work(Tokens(database, own_cell(settings, selected(settings))))

    return asyncio.run(run())


def _end(_context: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    """A click callback. Returns the time in `--expires`."""
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        if span := _SPAN.fullmatch(text):
            end = now + timedelta(**{_UNITS[span["unit"]]: int(span["count"])})
        else:
            end = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} must be a span such as 90d, 12h or 30m, or a date such as 2027-01-31"
        ) from None
    if end <= now:
        raise click.BadParameter(f"{text} is in the past; the token would never be valid")
    return end


def _roles(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> frozenset[str]:
    """A click callback. Returns the checked names of roles."""
    return frozenset(name for each in names if (name := checked_name(context, parameter, each)))


@click.group()
def tokens() -> None:
    """Manage bearer tokens, which give access to the server."""


@tokens.command()
@click.argument("name", callback=checked_owner)  # the name is also the owner, unless `--owner` is given
@click.option("--owner", callback=checked_owner, help="Owner whose chats and documents it opens.  [default: NAME]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    help="What it allows; may be repeated.  [default: read, chat, approve]",
)
@click.option("--expires", metavar="TIME", callback=_end, help="When it ends: 90d, 12h, 30m, or a date (YYYY-MM-DD).")
@click.option(
    "--role", "roles", multiple=True, callback=_roles, help="A role for the approvers of policies; may be repeated."
)
@click.option("--plan", callback=checked_name, help="Name of the limits that it comes with.")
def create(
    name: str,
    owner: str | None,
    scopes: tuple[Scope, ...],
    expires: datetime | None,
    roles: frozenset[str],
    plan: str | None,
) -> None:
    """Create a token called NAME and print it once. From the first token on, the server asks every client for one."""
    settings = read_settings()
    identity = Identity(owner or name, frozenset(scopes) or OF_A_PERSON, expires, plan=plan, roles=roles)
    token = with_tokens(settings, lambda stored: stored.create(name, identity), open_database)
    click.echo(f"Created a token of {owner or name} in {database_name(settings)}. It is shown only once:", err=True)
    click.echo(token)


@tokens.command("list")
def list_tokens() -> None:
    """List the tokens by name.

    The columns are name, owner, day of creation, scopes, end, last use, plan. The tokens themselves are not stored.
    """
    settings = read_settings()
    found = with_tokens(settings, lambda stored: stored.list())
    if not found:
        click.echo(
            f"There is no token in {database_name(settings)}; make one with `turnstream tokens create`.", err=True
        )
    lines = [
        [
            token.name,
            token.owner,
            f"{token.created_at:%Y-%m-%d}",
            ",".join(token.scopes),
            f"expires {token.expires_at:%Y-%m-%d %H:%M}" if token.expires_at else "expires never",
            f"used {token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "used never",
            f"plan {token.plan}" if token.plan else "",
        ]
        for token in found
    ]
    print_table(lines)


@tokens.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the token called NAME. A running server refuses it within seconds."""
    if not with_tokens(read_settings(), lambda stored: stored.delete(name)):
        raise NotFound(f"There is no token named {name}; `turnstream tokens list` shows the names.")
