"""`turnstream migrate`."""

import asyncio

import click

from app.config import read_settings
from app.setup.databases import open_database


@click.command()
def migrate() -> None:
    """Bring the database to the newest revision. `serve` does this too."""

    async def run() -> None:
        async with open_database(read_settings()):
            click.echo("the database is up to date")

    asyncio.run(run())
