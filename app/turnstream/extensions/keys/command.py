"""The command `turnstream keys`."""

import asyncio
from collections import Counter

import click

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings
from turnstream.extensions.keys.old_secrets import encrypt
from turnstream.extensions.keys.rotation import key_counts, rotate
from turnstream.libraries.secrets.master_keys import HOW_TO_MAKE, master_keys
from turnstream.libraries.secrets.owner_keys import OwnerKeys, count_lost_keys
from turnstream.libraries.secrets.sealing import MasterKeys
from turnstream.setup.databases import check_present, database_name, open_present_database
from turnstream.storage.database import Database
from turnstream.storage.owners.audit import AuditTrail

_SHOWN = 10  # owners that one sentence names


@click.group(invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Report and change the keys that encrypt secrets."""
    if context.invoked_subcommand is None:
        context.invoke(status)


@keys.command()
def status() -> None:
    """Count the keys of owners by the master key that wraps them."""
    settings = read_settings()
    masters = _masters(settings)

    async def run() -> None:
        async with open_present_database(settings) as database:
            owner_keys = OwnerKeys(database, masters)
            counts, lost = await key_counts(owner_keys), await count_lost_keys(database, masters.ids)
            click.echo(f"master keys: {len(masters.ids)}; the first is {masters.first.hex()}")
            click.echo(f"keys of owners: {counts.every}")
            click.echo(f"wrapped by an earlier master key: {counts.others - lost}")
            click.echo(f"wrapped by a master key that is not in TURNSTREAM_MASTER_KEY: {lost}")
            click.echo(f"a replica without the first master key: {await owner_keys.replica_without_key() or 'none'}")

    asyncio.run(run())


@keys.command("rotate")
def rotate_command() -> None:
    """Wrap the keys of all owners by the first master key.

    Servers may run meanwhile. First give all replicas both master keys, the new key before the old key. When the
    command has finished, the old key may be removed. After an interruption, call the command again.
    """
    settings = read_settings()
    masters = _masters(settings)

    async def run() -> None:
        async with open_present_database(settings) as database:
            owner_keys = OwnerKeys(database, masters)
            await _check_replicas(owner_keys)
            left, done, failed = (await key_counts(owner_keys)).others, 0, list[str]()
            async for step in rotate(database, masters):
                done += step.rewrapped
                failed += step.failed
                click.echo(f"{done} of {left} keys are wrapped by the first master key", err=True)
            if done:
                await AuditTrail(database).note("master_key.rotated", None, {"keys": done})
            if failed:
                raise ConfigError(_of_failed(failed))
            if others := (await key_counts(owner_keys)).others:
                raise ConfigError(
                    f"{others} keys were wrapped by another master key meanwhile: make the new key the first one in"
                    " TURNSTREAM_MASTER_KEY on all replicas, and call this again."
                )
            click.echo(f"Every key in {database_name(settings)} is wrapped by the master key {masters.first.hex()}.")

    asyncio.run(run())


@keys.command("encrypt")
def encrypt_command() -> None:
    """Encrypt the secrets that rows from before the master key have in plain text.

    Servers may run meanwhile. After an interruption, call the command again: rows that are encrypted stay encrypted.
    The write-ahead log and backups contain old copies of the rows until they are deleted.
    """
    settings = read_settings()
    masters = _masters(settings)

    async def run() -> None:
        async with open_present_database(settings) as database:
            owner_keys = OwnerKeys(database, masters, required=True)
            await _check_replicas(owner_keys)
            encrypted, failed = await _encrypted(database, owner_keys)
            if encrypted.total():
                await AuditTrail(database).note("secrets.encrypted", None, +encrypted)
            if failed:
                raise ConfigError(_of_failed(failed))
            click.echo(f"Encrypted the secrets of {encrypted.total()} rows in {database_name(settings)}.")

    asyncio.run(run())


async def _encrypted(database: Database, owner_keys: OwnerKeys) -> tuple[Counter[str], list[str]]:
    """Returns the number of changed rows of each table, and the owners whose key cannot be unwrapped."""
    encrypted, read, failed = Counter[str](), Counter[str](), set[str]()
    async for step in encrypt(database, owner_keys):
        read[step.table] += step.read
        encrypted[step.table] += step.encrypted
        failed |= step.failed
        click.echo(f"{step.table}: {read[step.table]} rows read, {encrypted[step.table]} encrypted", err=True)
    return encrypted, sorted(failed)


def _masters(settings: Settings) -> MasterKeys:
    check_present(settings)
    if (masters := master_keys(settings, make=False)) is None:
        raise ConfigError(f"TURNSTREAM_MASTER_KEY must be set: {HOW_TO_MAKE}.")
    return masters


async def _check_replicas(owner_keys: OwnerKeys) -> None:
    if replica := await owner_keys.replica_without_key():
        raise ConfigError(
            f"The replica {replica} lacks the first master key, and is alive, or was in the last five minutes: it could"
            " not decrypt what is changed here. Give the key to all replicas, and try again."
        )


def _of_failed(owners: list[str]) -> str:
    more = f" and {len(owners) - _SHOWN} more" if len(owners) > _SHOWN else ""
    return (
        f"The keys of {len(owners)} owners cannot be unwrapped ({', '.join(owners[:_SHOWN])}{more}):"
        " TURNSTREAM_MASTER_KEY must have the master key from before, too. The others are done."
    )
