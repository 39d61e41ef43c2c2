"""`turnstream migrate`."""

import asyncio

import click

from app.config import read_settings
from app.setup.databases import database_name, open_database


@click.command()
def migrate() -> None:
    """Migrate the database, as `serve` does at its start."""
    settings = read_settings()

    async def run() -> None:
        async with open_database(settings):
            click.echo(f"Migrated {database_name(settings)} to the newest revision.")

    asyncio.run(run())
