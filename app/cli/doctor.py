"""`turnstream doctor`."""

import asyncio

import click
from pydantic import SecretStr

from app.config import Settings, read_settings
from app.domain.errors import TurnstreamError
from app.setup.databases import open_present_database
from app.setup.models import default_model
from app.storage.tokens import Tokens


@click.command()
def doctor() -> None:
    """Show every setting with its value, and check the database."""
    settings = read_settings()
    for name, field in Settings.model_fields.items():
        variable = getattr(field.validation_alias, "choices", [name])[0]
        click.echo(f"{variable} = {_shown(getattr(settings, name))}\n    {field.description}")
    click.echo(f"\nmodel: {default_model(settings)}")
    try:
        count = asyncio.run(_count_tokens(settings))
    except TurnstreamError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"database: reachable, up to date\ntokens: {count or 'none (local use only)'}")


async def _count_tokens(settings: Settings) -> int:
    async with open_present_database(settings) as database:
        return len(await Tokens(database).list())


def _shown(value: object) -> str:
    if value is None:
        return "(not set)"
    return "(set)" if isinstance(value, SecretStr) else str(value)
