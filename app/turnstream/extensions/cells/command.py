"""The command `turnstream owners move`."""

import asyncio
from collections.abc import Mapping

import click

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import departed_name
from turnstream.extension import read_settings
from turnstream.extensions.cells import cell_name
from turnstream.extensions.cells.owner_move import TARGET_MASTER_KEY, OwnerMove
from turnstream.libraries.command_values import checked_owner
from turnstream.libraries.secrets.master_keys import master_keys, read_master_keys
from turnstream.setup.databases import actor, addressed, check_present, database_url, session_url
from turnstream.storage.database import connect
from turnstream.storage.owners.audit import AuditTrail


@click.command("move")
@click.argument("owner", callback=checked_owner)
@click.option("--to", "cell", required=True, help="The cell where OWNER is to be.")
@click.option("--url", envvar="TARGET_DATABASE_URL", required=True, help="URL of the Postgres of that cell.")
@click.option(
    "--master-key",
    envvar=TARGET_MASTER_KEY,
    show_envvar=True,
    help="The master keys of that cell, if they are others: better in the environment.",
)
def move(owner: str, cell: str, url: str, master_key: str | None) -> None:
    """Move OWNER from the cell of the settings to another one.

    Rows that no longer change are copied first. Then, for some seconds, changes are refused with 503; running turns
    pause, and continue in the new cell. An interrupted move can be repeated. The rows in the old cell get the owner
    `OWNER (moved to CELL)` and must be erased.
    """
    settings = read_settings()
    if (here := cell_name(settings)) is None or cell == here:
        raise ConfigError("TURNSTREAM_CELL must name the cell from which the owner is moved, and --to another one.")
    target_url = addressed(settings, url, "--url", past_pooler=True)
    for table, rows in asyncio.run(_move(settings, here, owner, cell, target_url, master_key)).items():
        if rows:
            click.echo(f"{table}: {rows}")
    click.echo(f"{owner} is in the cell {cell}. Erase {departed_name(owner, cell)!r} when nothing is missed.", err=True)


async def _move(
    settings: Settings, here: str, owner: str, there: str, url: str, master_key: str | None
) -> Mapping[str, int]:
    check_present(settings)
    masters = master_keys(settings)
    theirs = masters if master_key is None else read_master_keys(TARGET_MASTER_KEY, master_key, settings)
    # No cell is migrated here, because its replicas may still run the older version.
    async with (
        database_url(settings) as source_url,
        connect(session_url(settings, source_url), size=settings.pool_size, actor=actor()) as source,
        connect(url, size=2, actor=actor()) as target,
    ):
        move = OwnerMove(owner, (here, source), (there, target), masters=(masters, theirs))
        await move.run()
        await AuditTrail(source).note("owner.moved", owner, {"to": there})
        return await move.counts()
