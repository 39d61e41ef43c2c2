"""`turnstream migrate`."""

import asyncio

import click

from app.config import read_settings
from app.setup.databases import database_name, open_database


@click.command()
def migrate() -> None:
    """Bring the database to the newest revision. `serve` does this too."""

    settings = read_settings()

    async def run() -> None:
        async with open_database(settings):
            click.echo(f"{database_name(settings)} is up to date")

    asyncio.run(run())
