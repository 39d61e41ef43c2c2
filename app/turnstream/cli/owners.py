"""`turnstream owners`."""

import asyncio
from collections import Counter
from contextlib import suppress

import click

from turnstream.api.identity.way import BELIEVED
from turnstream.cli import OpenGroup
from turnstream.config import Settings
from turnstream.extension import read_settings, recordings_of, selected
from turnstream.setup.databases import (
    database_name,
    open_present_database,
)
from turnstream.storage.chats.turns import CANCEL_TURN
from turnstream.storage.database import Database
from turnstream.storage.owners.audit import AuditTrail
from turnstream.storage.owners.owners import Owners
from turnstream.storage.runs.queue import CANCEL, NOTIFY

# Seconds that running turns get to end after they were cancelled.
_PATIENCE = 15.0
_LOOK = 0.2  # seconds


@click.group(cls=OpenGroup)
def owners() -> None:
    """List owners; export, import and erase what they have."""


@owners.command("list")
def list_owners() -> None:
    """List every owner, with what they have.

    The columns are chats, uploads and their bytes, documents, tokens, last change.
    """

    async def run() -> None:
        async with open_present_database(read_settings()) as database:
            for each in await Owners(database).list():
                click.echo(
                    f"{each.owner}\t{each.chats} chats\t{each.uploads} uploads\t{each.bytes} bytes"
                    f"\t{each.documents} documents\t{each.tokens} tokens\t{each.changed_at:%Y-%m-%d}"
                )

    asyncio.run(run())


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
    erased: Counter[str] = Counter()
    extensions = selected(settings)
    recordings = recordings_of(settings, extensions)
    async with open_present_database(settings) as database:
        stored = Owners(database)
        erased["tokens"] = len(await stored.delete_tokens(owner))
        believed_until = asyncio.get_running_loop().time() + (2 * BELIEVED if erased["tokens"] else 0)
        await _cancel(database, stored, owner)
        for extension in extensions:
            await extension.before_erasure(settings, database, owner)
        while True:
            async for step in stored.erase(owner):
                erased[step.table] += step.rows
                erased["recordings"] += sum(map(recordings.delete, step.turns))
            # A server trusts a token for some seconds after it has gone, and may have written meanwhile.
            if asyncio.get_running_loop().time() >= believed_until and await stored.is_erased(owner):
                if erased.total():
                    await AuditTrail(database).note("owner.erased", owner, +erased)
                return +erased
            await asyncio.sleep(_LOOK)


async def _cancel(database: Database, stored: Owners, owner: str) -> None:
    """Cancels the turns that are open, and waits until none runs; not for long: their rows go in any case."""
    turns, running = await stored.open_turns(owner)
    for turn in turns:
        await database.row(CANCEL_TURN, turn=turn, withdraws=False)
        await database.row(NOTIFY, payload=f"{CANCEL} {turn}")
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while running:
                await asyncio.sleep(_LOOK)
                _, running = await stored.open_turns(owner)
