"""`turnstream owners`."""

import asyncio
from collections import Counter

import click

from turnstream.api.identity.authenticator import BELIEVED
from turnstream.config import Settings
from turnstream.extension import before_erasure, read_settings, recordings_of, selected
from turnstream.libraries.command_values import OpenGroup
from turnstream.libraries.erasure.erasure import erase_owner
from turnstream.setup.databases import database_name, open_present_database


@click.group(cls=OpenGroup)
def owners() -> None:
    """List owners; export, import and erase what they have."""


@owners.command("erase")
@click.argument("owner")
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(owner: str, yes: bool) -> None:
    """Erase everything that OWNER has.

    These are tokens, chats, uploads, documents, and recordings on this machine. Running turns are cancelled first.
    The command ends when nothing is left. After an interruption call it again.
    """
    settings = read_settings()
    if not yes:
        click.confirm(f"Erase everything of {owner} in {database_name(settings)}?", abort=True, err=True)
    for table, number in sorted(asyncio.run(_erase(settings, owner)).items()):
        click.echo(f"{table}: {number}")
    click.echo(f"Erased {owner}: nothing is left in {database_name(settings)}.")


async def _erase(settings: Settings, owner: str) -> Counter[str]:
    extensions = selected(settings)
    recordings = recordings_of(settings, extensions)
    async with open_present_database(settings) as database:
        before = before_erasure(settings, extensions, database)
        return await erase_owner(database, owner, recordings.delete, BELIEVED, before)
