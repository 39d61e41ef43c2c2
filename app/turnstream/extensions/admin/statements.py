"""The command `turnstream statements`."""

import asyncio

import click

from turnstream.domain.errors import ConfigError
from turnstream.extension import read_settings
from turnstream.extensions.admin.statement_list import described, named
from turnstream.setup.databases import check_present, database_url, session_url
from turnstream.storage.database import single_connection
from turnstream.storage.migrations import newest_revision, present_revision


@click.command()
@click.argument("name", required=False)
@click.option("--plan", is_flag=True, help="With the plan of Postgres for any values, as comments.")
def statements(name: str | None, plan: bool) -> None:
    """Print the SQL of statements in full, as psql takes it.

    NAME is a statement (CLAIM_TURNS), a module (queue), or both (runs.queue.CLAIM_TURNS). Without NAME all statements
    are printed. The database supplies the types of the parameters and the plans; no printed statement is executed.
    """
    if not (found := named(name)):
        raise ConfigError(f"There is no statement named {name}; `turnstream statements` prints all statements.")
    settings = read_settings()
    check_present(settings)

    async def run() -> None:
        async with database_url(settings) as url:
            direct = session_url(settings, url)
            if await present_revision(direct) != newest_revision():
                raise ConfigError("The database is not at the newest revision: run `turnstream migrate` first.")
            async with single_connection(direct) as connection:
                for each, statement in found.items():
                    click.echo(await described(connection, each, statement, plan=plan) + "\n")

    asyncio.run(run())
