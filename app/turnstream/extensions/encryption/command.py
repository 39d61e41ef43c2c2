"""The command `turnstream encryption`."""

import asyncio
from collections import Counter
from typing import assert_never

import click

from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings
from turnstream.extensions.encryption import EncryptionSettings
from turnstream.extensions.encryption.addresses import sign_in_addresses
from turnstream.extensions.encryption.old_contents import change_contents
from turnstream.extensions.encryption.rotation import KeyRotation
from turnstream.libraries.secrets.master_keys import HOW_TO_MAKE, master_keys
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.setup.databases import check_present, database_name, open_present_database
from turnstream.storage.database import Database
from turnstream.storage.owners.audit import AuditTrail

_SHOWN = 10  # maximum number of owners that one sentence names
_DAY = 86_400.0  # seconds


@click.group()
def encryption() -> None:
    """Change how contents are stored."""


@encryption.command()
def apply() -> None:
    """Give rows from before the form that TURNSTREAM_ENCRYPT_TEXTS asks for.

    Servers with the same setting may run meanwhile. If the command is interrupted, call it again: rows that are already
    changed stay changed. Old copies of the rows are in the write-ahead log and in backups until these are deleted.
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


@encryption.command("rotate")
@click.option("--owner", help="The owner who gets a new key; all owners without it.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Days. Younger keys stay, so that a repeated call continues.",
)
def rotate_command(owner: str | None, older_than: float) -> None:
    """Give owners new keys, and encrypt their texts and secrets again.

    Servers may run meanwhile. The command waits twice: for five minutes, until no replica encrypts with the previous
    keys, and for one minute after the last row. Then the previous keys are destroyed. If the command is interrupted,
    call it again.

    Call it with the settings of the server: its tools file names the servers at which owners sign in. Old copies of the
    rows are in backups until these are deleted.
    """
    settings = read_settings()
    check_present(settings)
    if (masters := master_keys(settings, make=False)) is None:
        raise ConfigError(f"TURNSTREAM_MASTER_KEY must be set: {HOW_TO_MAKE}.")

    async def run() -> None:
        async with open_present_database(settings) as database:
            rotation = KeyRotation(
                database, OwnerKeys(database, masters), sign_in_addresses(settings), age=older_than * _DAY, owner=owner
            )
            if replica := await rotation.replica_without():
                raise ConfigError(
                    f"The replica {replica} is of a version that cannot read rows of two keys, or lacks the first"
                    " master key or the extension encryption; it is alive, or was in the last five minutes."
                )
            if owner is not None and await rotation.count() + await rotation.kept() == 0:
                raise ConfigError(f"{owner} has no key that is {older_than:g} days old, or is moving to another cell.")
            await _rotate(rotation, database)

    asyncio.run(run())


async def _rotate(rotation: KeyRotation, database: Database) -> None:
    """Runs a rotation, and prints its steps. Raises ConfigError if a key or a row could not be changed."""
    number, replaced, resealed, rows, destroyed, failed = await rotation.count(), 0, 0, 0, 0, list[str]()
    async for step in rotation.run():
        failed += step.failed
        match step.kind:
            case "replaced":
                replaced += step.number
                line = f"{replaced} of {number} owners have a new key"
            case "waits":
                line = f"waits {step.number} seconds for replicas with the keys before"
            case "resealed":
                resealed, rows = resealed + 1, rows + step.rows
                line = f"{resealed} of {step.number} owners: {rows} rows are encrypted again"
            case "destroyed":
                destroyed += step.number
                line = f"{destroyed} keys from before are destroyed"
            case _:
                assert_never(step.kind)
        click.echo(line, err=True)
    if replaced or destroyed:
        detail = {"replaced": replaced, "rows": rows, "destroyed": destroyed}
        await AuditTrail(database).note("owner_keys.rotated", None, detail)
    if failed:
        more = f" And {len(failed) - _SHOWN} more." if len(failed) > _SHOWN else ""
        raise ConfigError(f"Keys from before are kept, because rows need them. {' '.join(failed[:_SHOWN])}{more}")
    if kept := await rotation.kept():
        raise ConfigError(f"{kept} keys from before are kept, because turns that run use them: call this again later.")
    click.echo(f"{replaced} owners have a new key; {destroyed} keys from before are destroyed.")
