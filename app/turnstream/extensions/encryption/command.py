"""`turnstream encryption`."""

import asyncio
from collections import Counter

import click

from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings
from turnstream.extensions.encryption import EncryptionSettings
from turnstream.extensions.encryption.old_contents import change_contents
from turnstream.setup.databases import database_name, open_present_database
from turnstream.storage.owners.audit import AuditTrail

_SHOWN = 10  # owners in one sentence


@click.group()
def encryption() -> None:
    """Change how contents are stored."""


@encryption.command()
def apply() -> None:
    """Give rows from before the form that TURNSTREAM_ENCRYPT_TEXTS asks for.

    Servers may run meanwhile, with the same setting. After an interruption call it again: what is changed stays so. Old
    copies of the rows are in the write-ahead log and in backups until these are deleted.
    """
    settings = read_settings()
    sealed = settings.section(EncryptionSettings).encrypt_texts

    async def run() -> None:
        async with open_present_database(settings) as database:
            if database.codec is None:
                raise ConfigError("TURNSTREAM_MASTER_KEY must be set: the keys of owners are wrapped by it.")
            read, changed, left, failed = Counter[str](), Counter[str](), 0, set[str]()
            async for step in change_contents(database, database.codec, sealed=sealed):
                read[step.table] += step.read
                changed[step.table] += step.changed
                left += step.left
                failed |= step.failed
                click.echo(f"{step.table}: {read[step.table]} rows read, {changed[step.table]} changed", err=True)
            if any(changed.values()):
                kind = "contents.encrypted" if sealed else "contents.decrypted"
                await AuditTrail(database).note(kind, None, dict(changed))
            if failed:
                raise ConfigError(
                    f"Contents of {len(failed)} owners cannot be decrypted ({', '.join(sorted(failed)[:_SHOWN])}):"
                    " TURNSTREAM_MASTER_KEY must have the master key from before, too. The others are done."
                )
            if left:
                raise ConfigError(
                    f"{left} rows are as they were, because they have changed meanwhile, or a live replica cannot"
                    " decrypt contents: call this again when all replicas have the extension and the master key."
                )
            form = "encrypted" if sealed else "plain"
            click.echo(f"All messages, uploads and documents in {database_name(settings)} are {form}.")

    asyncio.run(run())
