"""The command `turnstream migrate`."""

import asyncio

import click

from turnstream.extension import read_settings
from turnstream.setup.databases import check_present, database_name, database_url, open_database, session_url
from turnstream.storage.migrations import downgrade_in_thread


@click.command()
@click.option("--to", metavar="REVISION", help="Take the database back to the revision that an older version has.")
def migrate(to: str | None) -> None:
    """Migrate the database, as `serve` does at its start."""
    settings = read_settings()

    async def upgrade() -> None:
        async with open_database(settings):
            click.echo(f"Migrated {database_name(settings)} to the newest revision.")

    async def take_back(revision: str) -> None:
        check_present(settings)
        async with database_url(settings) as url:
            await downgrade_in_thread(session_url(settings, url), revision)
        click.echo(f"Took {database_name(settings)} back to revision {revision}.")

    asyncio.run(upgrade() if to is None else take_back(to))
